"""`stentor evaluate --stream`: error rate and latency of a model that answers while one speaks."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stentor.commands.evaluate.records import Recordings, by_normalizer, left_out, place_model, task_of
from stentor.commands.evaluate.speaker_attributed import reference_words
from stentor.commands.evaluate_options import EvaluateOptions
from stentor.config.load import parse_source
from stentor.data.batch import Prediction
from stentor.data.cut import Cut, language_of, segments_of, words_of
from stentor.data.storage import is_remote, name_of
from stentor.errors import ConfigError
from stentor.inference.load import load
from stentor.inference.model import Model
from stentor.inference.speaker_attribution import SpeakerTurns
from stentor.inference.stream.base import Recogniser
from stentor.inference.stream.recognisers import StreamOptions, open_recogniser
from stentor.inference.stream.speakers import SpeakerStream
from stentor.inference.stream.stream import Stream
from stentor.metrics.cpwer import Attributed, confused, cpwer
from stentor.metrics.format import figure, label, text_table
from stentor.metrics.score import Score
from stentor.metrics.stream import StreamedRecording, stream_scores
from stentor.pipeline.journal import write_jsonl
from stentor.report.report import write_report
from stentor.report.run_folder import STREAMS, read_run
from stentor.tasks.transcribe import Transcribe
from stentor.text.written_words import joined

STEP = 0.02
"""Seconds of audio that are fed at a time."""
Words = Sequence[Mapping[str, Any]]


def evaluate_streams(options: EvaluateOptions) -> str:
    """Score a model's streams at each of the delays; returns the scores as text and writes them to `--json` (beside it
    NAME.DELAY.instances.jsonl), and for the report of the run."""
    run = _run_folder(options)
    source = parse_source(options.data)
    loaded = load(options.model or "")
    loaded.for_transcription()
    tasks = by_normalizer(task_of(loaded, options), options)
    if len(tasks) > 1:
        raise ConfigError("--normalizer takes one name with --stream.")
    (task,) = tasks.values()
    assert isinstance(task, Transcribe)
    diarizer = load(options.diarizer) if options.diarizer is not None else None
    asked, delays = _delays(options.stream or "")
    for delay in delays:  # with the error of one that it was not trained for
        policy = open_recogniser(loaded, StreamOptions(None, delay, asked)).policy
    recordings = Recordings(options, loaded, task, source)
    place_model(loaded)
    audio, cuts = list(recordings.audio()), recordings.cuts
    recordings.check("heard")
    offline = diarizer is not None and [diarizer.diarize(samples, recordings.rate).segments for samples in audio]
    rows: dict[str, Any] = {}
    for delay in delays:
        recognisers = {
            tag: open_recogniser(loaded, StreamOptions(tag, delay, asked)) for tag in set(map(language_of, cuts))
        }
        opened = (recognisers[language_of(cut)] for cut in cuts)
        streams = [_stream(*parts, diarizer) for parts in zip(opened, cuts, audio, strict=True)]
        predictions = [
            Prediction(cut.id, task.reference(cut), {"text": _text(recording)}) for cut, recording in zip(cuts, streams)
        ]
        # Of the text alone, also where the model has learned when words are said.
        rows[f"{delay:g}"] = {**Transcribe.score(task, predictions), **stream_scores(streams)}
        if offline:
            rows[f"{delay:g}"] |= speaker_scores(cuts, streams, offline, task.normalizer)
        if options.json is not None:
            write_instances(options.json.with_suffix(f".{delay:g}.instances.jsonl"), predictions, streams)
    figures = {delay: {name: score.as_dict() for name, score in scores.items()} for delay, scores in rows.items()}
    facts = {"data": options.data, "records": len(cuts), "policy": policy}
    if run is not None:
        _report(run, {"model": model_name(loaded), **facts}, figures)
    recordings.write({"policy": policy, "task": task.type, "stream": figures})
    return _table(rows, len(cuts)) + left_out(recordings.dropped)


def _run_folder(options: EvaluateOptions) -> Path | None:
    """The run whose report shows the figures."""
    if is_remote(options.report):
        raise ConfigError(
            f"--report {name_of(options.report)}: a report is written in a run folder on this machine; --json takes an "
            "address."
        )
    if options.report is not None:
        return read_run(options.report).folder
    folder = Path(options.model or "")
    return folder if (folder / "resolved.yaml").exists() else None


def model_name(loaded: Model) -> str:
    """As reports name it: by its training, or as its folder or Hub repository is called. Not where it is."""
    path = Path(loaded.name)
    return str(loaded.training.get("name") or (path.resolve().name if path.exists() else loaded.name))


def _report(run: Path, facts: dict[str, Any], figures: dict[str, Any]) -> None:
    """Add the figures of each delay to the run's, and write its report again."""
    with (run / STREAMS).open("a", encoding="utf-8") as file:
        for delay, scores in figures.items():
            values = {name: score["value"] for name, score in scores.items()}
            file.write(json.dumps({**facts, "delay": float(delay), "scores": values}, ensure_ascii=False) + "\n")
    write_report(run)


def _delays(text: str) -> tuple[Any, list[float]]:
    """The policy, as in `agreement=1` and `ctc=0.32`, None for the model's own, and the seconds there, in `0.32` or
    `0.08,0.32,1.28`, perhaps after `chunk=` or `delay=`."""
    policy, _, seconds = text.rpartition("=")
    policies = {"": None, "chunk": None, "delay": None, "agreement": "agreement", "ctc": "ctc"}
    try:
        if policy in policies:
            return policies[policy], [float(part) for part in seconds.split(",")]
    except ValueError:
        pass
    raise ConfigError(
        f"--stream {text}: give seconds, such as 0.32, or several with commas; `agreement=0.32` for LocalAgreement, "
        "`ctc=0.32` for the CTC head."
    )


def _stream(recogniser: Recogniser, cut: Cut, audio: np.ndarray, diarizer: Model | None) -> StreamedRecording:
    """The events of a recording that is fed as it would come."""
    rate = recogniser.rate
    words = Stream(recogniser, rate)
    stream = words if diarizer is None else SpeakerStream(words, diarizer.online_diarizer())
    events: list[dict[str, Any]] = []
    computed = now = 0.0
    pieces = np.split(audio, range(round(rate * STEP), len(audio), round(rate * STEP)))
    fed = 0
    for number, piece in enumerate(pieces, 1):
        fed += len(piece)
        began = time.perf_counter()
        known = stream.feed(piece)
        if number == len(pieces):
            known += stream.finish()
        took = time.perf_counter() - began
        computed, now = computed + took, max(now, fed / rate) + took
        events += [{**event, "done": now} for event in known]
    return StreamedRecording(words_of(cut), events, len(audio) / rate, computed)


def _text(recording: StreamedRecording) -> str:
    return joined(event["word"] for event in recording.events if event["type"] == "word")


def _table(rows: dict[str, Any], count: int) -> str:
    names = list(next(iter(rows.values())))
    head = ["delay", *map(label, names)]
    cells = [[delay, *(figure(name, scores[name].value) for name in names)] for delay, scores in rows.items()]
    return "\n".join([f"{count} records, seconds", *text_table([head, *cells])])


def write_instances(path: Path, predictions: Sequence[Prediction], recordings: Sequence[StreamedRecording]) -> None:
    """A JSON line for each recording: `prediction` and `reference`, and in milliseconds `source_length`, `delays` (when
    each word stayed, in seconds of audio that had come) and `elapsed` (with the time of computation)."""
    rows = []
    for index, (prediction, recording) in enumerate(zip(predictions, recordings, strict=True)):
        # Readers split at spaces, which a word may hold.
        words = [(w, event) for event in recording.events if event["type"] == "word" for w in event["word"].split()]
        row = {"index": index, "source": prediction.id, "prediction": " ".join(word for word, _ in words)}
        row |= {"reference": prediction.reference["text"]}
        row |= {"delays": [round(1000 * event["time"], 1) for _, event in words]}
        row |= {"elapsed": [round(1000 * event["done"], 1) for _, event in words]}
        rows.append(row | {"source_length": round(1000 * recording.seconds, 1)})
    write_jsonl(path, rows)


def speaker_scores(
    cuts: Sequence[Cut], recordings: Sequence[StreamedRecording], offline: Sequence[Words], normalizer: str
) -> dict[str, Score]:
    """`offline`: the segments of each recording as the same diarizer hears it whole. `cpwer` and `confused` (words with
    another speaker than the truth) of the stream; `cpwer_offline` and `confused_offline` of its words with the offline
    speakers; `moved`: words with another speaker than offline."""
    live = [[event for event in recording.events if event["type"] == "word"] for recording in recordings]
    with_offline = [_attributed(words, segments) for words, segments in zip(live, offline, strict=True)]
    with_truth = [_attributed(words, segments_of(cut)) for words, cut in zip(live, cuts, strict=True)]

    def rate(hypotheses: Iterable[Words]) -> Score:
        return cpwer(
            [
                Attributed(cut.id, reference_words(cut), {"words": words}, language_of(cut))
                for cut, words in zip(cuts, hypotheses, strict=True)
            ],
            normalizer,
        )

    return {
        "cpwer": rate(live),
        "cpwer_offline": rate(with_offline),
        "confused": confused(map(_pairs, live, with_truth)),
        "confused_offline": confused(map(_pairs, with_offline, with_truth)),
        "moved": confused(map(_pairs, live, with_offline)),
    }


def _attributed(words: Words, segments: Words) -> Words:
    speakers = SpeakerTurns([dict(s) for s in segments]).speakers([dict(word) for word in words])
    return [{**word, "speaker": speaker} for word, speaker in zip(words, speakers, strict=True)]


def _pairs(words: Words, others: Words) -> list[tuple[str | None, str | None]]:
    return [(a["speaker"], b["speaker"]) for a, b in zip(words, others, strict=True)]
