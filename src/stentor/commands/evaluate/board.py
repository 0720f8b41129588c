"""`stentor evaluate MODEL --board`: a board of the Open ASR Leaderboard, set by set, as its own scripts score it.

What is written beside `--json` is what those scripts write and read: a manifest of raw texts for each set
(`normalizer/eval_utils.py`), and `.eval_results/open_asr_leaderboard.yaml`, which submitters put into a model's
repository.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from stentor.commands.evaluate.records import left_out, place_model, scored_as, write_figures
from stentor.commands.evaluate.streamed import model_name
from stentor.commands.evaluate_options import EvaluateOptions
from stentor.config.yaml_writer import dump
from stentor.data.batch import Prediction
from stentor.data.cut import Cut, UnusableRecord, language_of, record_from_cut, text_of
from stentor.data.load_audio import load_audio
from stentor.dataloading.mixing import DropCounter, filter_cuts
from stentor.dataloading.planned import ModelDrops
from stentor.dataloading.section import Data
from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.load import load
from stentor.inference.model import Model
from stentor.inference.options import DecodingOptions
from stentor.inference.recording import ArrayRecording
from stentor.inference.transcribe import Transcriber, batches
from stentor.metrics.format import figure, interval, text_table
from stentor.metrics.score import Score
from stentor.pipeline.journal import write_jsonl
from stentor.sources.hub import Hub
from stentor.sources.hub_columns import USUAL, Columns
from stentor.sources.hub_open import HubLocation, column_value, open_dataset
from stentor.sources.open_asr import BoardSet, boards
from stentor.tasks.transcribe import Transcribe
from stentor.text.normalize import normalize

SCORING = "open_asr"
IGNORED = ("", "ignore time segment in scoring")
"""Normalised references that the board leaves out."""
RESULTS = "hf-audio/open-asr-leaderboard"
"""The benchmark on the Hub that `.eval_results` names; `mean_wer` and `rtfx` are two of its tasks."""


def evaluate_board(options: EvaluateOptions) -> str:
    """Score a model on the sets of a board; answers the board's table as text. Raises ConfigError for a board or set
    that is not known, and as the sources do."""
    tests = chosen(str(options.board))
    loaded = load(str(options.model))
    task = scored_as(loaded.for_transcription(), SCORING)
    device = place_model(loaded)
    name = model_name(loaded)
    model_id = name if "/" in name else f"local/{name}"
    rows: dict[BoardSet, dict[str, Any]] = {}
    notes = ""
    with device.autocast():
        for test in tests:
            dropped = DropCounter()
            cuts = list(_usable(loaded, task, test, options, dropped))
            order = {cut.id: number for number, cut in enumerate(cuts)}
            timed = _timed(loaded, task, cuts, options.batch_tokens, test.board == "long_form", dropped)
            answered = sorted(timed, key=lambda answer: order[answer[0].id])
            if test.sessions:
                answered = of_whole_sessions(answered, dropped)
            dropped.check(len(cuts) + dropped.bad, Data.model_fields["max_bad"].default, test.name)
            if not answered:
                raise DataError(
                    f"{test.name}: no record could be scored; look at the copy of {test.hub}.{left_out(dropped)}"
                )
            sessions = merge_sessions(answered) if test.sessions else answered
            rows[test] = _row(task.score([prediction for prediction, _ in sessions])["wer"], answered)
            rows[test] |= dropped.facts()
            notes += left_out(dropped)
            if options.json is not None:
                write_manifest(options.json.with_suffix("") / manifest_name(model_id, test), answered)
    figures: dict[str, Any] = {"model": options.model, "board": options.board, "scoring": SCORING, **totals(rows)}
    figures["sets"] = {test.name: {"column": test.column, **row} for test, row in rows.items()}
    if options.json is not None:
        write_figures(options.json, figures)
        results = options.json.with_suffix("") / ".eval_results" / "open_asr_leaderboard.yaml"
        if options.limit is None and rows.keys() == set(boards()[tests[0].board].values()):
            _write_results(results, figures)
        else:
            notes += f"\n{results.name} is not written: it is about all records of all sets of a board."
    return _table(rows, figures) + notes


def chosen(text: str) -> list[BoardSet]:
    """The sets that `BOARD` or `BOARD:SET,SET` names."""
    board, _, names = text.partition(":")
    known = boards()
    chosen = names.split(",") if names else list(known[board])
    if unknown := [name for name in chosen if name not in known[board]]:
        raise ConfigError(f"--board {text}: {board} has no set '{unknown[0]}'; it has: {', '.join(known[board])}.")
    return [known[board][name] for name in chosen]


def _usable(
    loaded: Model, task: Transcribe, test: BoardSet, options: EvaluateOptions, dropped: DropCounter
) -> Iterator[Cut]:
    """The records of a set that are scored."""
    bundle = loaded.bundle

    def drop_reason(cut: Cut) -> tuple[str, str] | None:
        text = normalize(text_of(cut) or "", SCORING, language_of(cut))
        return ("no_reference", f"{cut.id}: the board does not score '{text_of(cut)}'.") if text in IGNORED else None

    model_reason = ModelDrops(task, bundle.processor, training=False)
    section = Data(train=[Hub()], max_seconds=bundle.processor.max_seconds or 1e9, min_seconds=0.0)
    source, texts = open_set(test, options.copies, options.limit)
    cuts = source.cuts() if texts is None else _with_sessions(source.cuts(), texts, options.limit)
    return filter_cuts(cuts, section, dropped, task.drop_reason, drop_reason, model_reason)


def open_set(test: BoardSet, copies: Path | None, limit: int | None) -> tuple[Hub, dict[str, str] | None]:
    """The source of a set, on the Hub or in a folder OWNER/NAME of `copies`; of a set in chunks all of them, and the
    transcript of each recording by its id."""

    def place(name: str) -> str:
        return name if copies is None else str(copies / name)

    if test.sessions is None:
        source = Hub(preset=f"open_asr_{test.board}", subset=test.name, name=place(test.hub), limit=limit)
        return source, None
    rows = open_dataset(HubLocation(place(test.sessions), test.split), False, None).rows()
    texts = {str(row.fields["id"]): _transcript(row.fields) for row in rows}
    folder = Path(place(test.hub))
    if copies is None:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(test.hub, repo_type="dataset", allow_patterns=["audio/*"]))
    columns = Columns(audio="file_name", text="parent_id")
    name, language = place(test.hub), test.language
    return Hub(name=name, split=test.split, columns=columns, audio_folder=folder / "audio", language=language), texts


def _transcript(fields: dict[str, Any]) -> str:
    values = (column_value(fields, column) for column in USUAL["text"])
    return next((str(value) for value in values if value is not None), "")


def _with_sessions(
    cuts: Iterable[Cut | UnusableRecord], texts: dict[str, str], limit: int | None
) -> Iterator[Cut | UnusableRecord]:
    """Chunks with the transcript of their recording, and `parent_id`, `chunk_index` and `chunks`, how many there are of
    it; only those of the first `limit` recordings."""
    listed = [(cut, None if isinstance(cut, UnusableRecord) else text_of(cut)) for cut in cuts]
    counts = Counter(parent for _, parent in listed if parent is not None)
    wanted = set(list(counts)[:limit])
    for cut, parent in listed:
        if isinstance(cut, UnusableRecord) or parent is None:
            yield cut
        elif parent in wanted:
            if parent not in texts:
                raise DataError(f"{cut.id}: there is no transcript of the recording '{parent}'.")
            cut.supervisions[0].text = texts[parent]
            cut.custom = {**(cut.custom or {}), "parent_id": parent, "chunks": counts[parent]}
            yield cut


Answered = tuple[Prediction, float]
"""A prediction and the seconds that it took."""


def _timed(
    loaded: Model, task: Transcribe, cuts: Sequence[Cut], budget: int, long: bool, dropped: DropCounter
) -> Iterator[Answered]:
    """Answers in batches of like lengths; recordings that are longer than the model takes, or all of a `long` board, in
    windows one by one. Reading the audio is not in the time, as on the board."""
    import torch

    processor = loaded.bundle.processor
    longest = 0.0 if long else processor.max_seconds or float("inf")
    short = [cut for cut in cuts if cut.duration <= longest]
    warm = False
    for batch in batches(short, lambda cut: processor.tokens(cut, cut.duration), budget):
        read = [(cut, audio) for cut in batch if (audio := _audio(cut, processor.sample_rate, dropped)) is not None]
        if not read:
            continue
        examples = [task.example(cut, audio, None) for cut, audio in read]
        with torch.no_grad():
            if not warm:
                task.predict(loaded.bundle, examples[:1])
                warm = True
            began = time.perf_counter()
            outputs = task.predict(loaded.bundle, examples)
        took = (time.perf_counter() - began) / len(outputs)
        for (cut, _), output in zip(read, outputs, strict=True):
            yield _prediction(task, cut, output), took
    for cut in (cut for cut in cuts if cut.duration > longest):
        audio = _audio(cut, processor.sample_rate, dropped)
        if audio is not None:
            recording = ArrayRecording(audio, processor.sample_rate, processor.sample_rate, cut.id)
            began = time.perf_counter()
            decoding = DecodingOptions(language=language_of(cut))
            (transcript,) = Transcriber(loaded.bundle, task, decoding, loaded.name).transcribe([recording])
            yield _prediction(task, cut, {"text": transcript.text}), time.perf_counter() - began


def _audio(cut: Cut, rate: int, dropped: DropCounter) -> Any:
    try:
        return load_audio(cut, rate)
    except AudioError as error:
        dropped.add(error.reason, f"{cut.id}: {error}")
        return None


def _prediction(task: Transcribe, cut: Cut, output: dict[str, Any]) -> Prediction:
    return Prediction(cut.id, task.reference(cut), output, cut.duration, record_from_cut(cut))


def of_whole_sessions(answered: Sequence[Answered], dropped: DropCounter) -> list[Answered]:
    """Without those of recordings of which a chunk was not answered: the transcript is about all of them."""
    counts = Counter(prediction.record["parent_id"] for prediction, _ in answered)
    whole = [answer for answer in answered if counts[answer[0].record["parent_id"]] == answer[0].record["chunks"]]
    for parent in counts.keys() - {prediction.record["parent_id"] for prediction, _ in whole}:
        dropped.add("incomplete", f"{parent}: a part of this recording could not be used.")
    return whole


def merge_sessions(answered: Sequence[Answered]) -> list[Answered]:
    """The chunks of a recording as one answer, in the order of `chunk_index`, to the transcript that they share."""
    sessions: dict[str, list[Answered]] = defaultdict(list)
    for prediction, took in answered:
        sessions[prediction.record["parent_id"]].append((prediction, took))
    merged = []
    for name, chunks in sorted(sessions.items()):
        chunks.sort(key=lambda chunk: int(chunk[0].record["chunk_index"]))
        text = " ".join(filter(None, (p.output["text"].strip() for p, _ in chunks)))
        seconds, took = sum(p.seconds for p, _ in chunks), sum(took for _, took in chunks)
        merged.append((Prediction(name, chunks[0][0].reference, {"text": text}, seconds), took))
    return merged


def _row(wer: Score, answered: Sequence[Answered]) -> dict[str, Any]:
    audio, took = sum(p.seconds for p, _ in answered), sum(took for _, took in answered)
    return {"wer": wer.as_dict(), "records": len(answered), "audio_seconds": audio, "inference_seconds": took}


def totals(rows: dict[BoardSet, dict[str, Any]]) -> dict[str, float]:
    """`average_wer` in percent, of the rounded rates of the sets and of the means of groups, and `rtfx`, all audio over
    all time, as the board has them."""
    groups: dict[str, list[float]] = defaultdict(list)
    for test, row in rows.items():
        groups[test.group].append(round(100 * row["wer"]["value"], 2))
    audio, took = (sum(row[key] for row in rows.values()) for key in ("audio_seconds", "inference_seconds"))
    return {"average_wer": round(fmean(map(fmean, groups.values())), 2), "rtfx": round(audio / took, 2)}


def manifest_name(model: str, test: BoardSet) -> str:
    """The file of a set's results, from whose name the board's scripts read the model and the set."""
    parts = (part.replace("/", "-") for part in (test.hub, test.config))
    return f"MODEL_{model.replace('/', '-')}_DATASET_{'_'.join(parts)}_{test.split}.jsonl"


def write_manifest(path: Path, answered: Sequence[Answered]) -> None:
    """Raw references and answers with lengths and times in seconds, a JSON line each."""
    rows = []
    for prediction, took in answered:
        parent = {k: v for k, v in prediction.record.items() if k in ("parent_id", "chunk_index")}
        row = {"audio_filepath": Path(prediction.id).name, "duration": prediction.seconds, "time": took}
        row |= {"text": prediction.reference["text"], "pred_text": prediction.output["text"]}
        rows.append(row | (parent if "parent_id" in parent else {}))
    write_jsonl(path, rows)


def _write_results(path: Path, figures: dict[str, Any]) -> None:
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    values = {"mean_wer": figures["average_wer"], "rtfx": figures["rtfx"]}
    wers = ", ".join(f"{row['column']} {100 * row['wer']['value']:.2f}" for row in figures["sets"].values())
    board = figures["board"].partition(":")[0]
    notes = f"{board} board, scored by stentor as the Open ASR Leaderboard does; WER in percent: {wers}"
    entries = [EvalResultEntry(dataset_id=RESULTS, task_id=task, value=v, notes=notes) for task, v in values.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump(eval_result_entries_to_yaml(entries)), encoding="utf-8")


def _table(rows: dict[BoardSet, dict[str, Any]], figures: dict[str, Any]) -> str:
    lines = [["set", "WER", "95 %", "records", "RTFx"]]
    for test, row in rows.items():
        speed = row["audio_seconds"] / row["inference_seconds"]
        wer = figure("wer", row["wer"]["value"]), interval("wer", row["wer"]) or "–"
        lines.append([test.column, *wer, str(row["records"]), f"{speed:.2f}"])
    lines.append(["average", f"{figures['average_wer']:.2f} %", "", "", f"{figures['rtfx']:.2f}"])
    return "\n".join(text_table(lines))
