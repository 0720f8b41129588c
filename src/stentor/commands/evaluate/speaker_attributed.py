"""`stentor evaluate ASR --diarizer MODEL2`: who said what, against references with speakers and texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.evaluate import dropped_figures, left_out, records, write_figures
from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.mixing import DropCounter
from stentor.errors import AudioError, DataError
from stentor.inference.recording import Recording

if TYPE_CHECKING:
    from lhotse.cut import Cut


def attributed(model: str, diarizer: str, data: str, out: Path | None) -> str:
    """Transcribe whole recordings with speakers and score them: cpWER, tcpWER, and the DER of the diarizer.

    Returns the scores as text and writes them to `out` (JSON) when given, with `NAME.predictions.jsonl` beside it.
    """
    from stentor.config.load import parse_source
    from stentor.data.cut import language_of, segments_of, uem_of
    from stentor.inference.load import load
    from stentor.inference.transcribe import transcribe
    from stentor.metrics.cpwer import Attributed, cpwer, tcpwer
    from stentor.metrics.diarization import DiarizedRecording, der
    from stentor.metrics.format import figure
    from stentor.tasks.words import Words

    source = parse_source(data)
    recogniser, second = load(model), load(diarizer)
    task = recogniser.for_transcription()
    hear = second.speaker_segments()
    plan, dropped, section = records(recogniser, second.task, source, data)
    cuts: list[Cut] = []
    spoken: list[list[dict[str, Any]]] = []

    def listened(recording: Recording) -> list[dict[str, Any]]:
        spoken.append(hear(recording))
        return spoken[-1]

    transcripts = []
    audio = _recordings(plan, recogniser.bundle.processor.sample_rate, cuts, dropped)
    for transcript in transcribe(
        recogniser.bundle, task, audio, model=model, words=isinstance(task, Words), diarizer=listened
    ):
        transcripts.append(transcript)
    dropped.check(len(cuts) + dropped.bad, section.max_bad, data)
    if not cuts:
        raise DataError(f"{data}: no record could be scored.")
    files = [
        Attributed(cut.id, _said(cut), transcript, language_of(cut))
        for cut, transcript in zip(cuts, transcripts, strict=True)
    ]
    turns = [
        DiarizedRecording(cut.id, segments_of(cut), segments, uem_of(cut), cut.duration)
        for cut, segments in zip(cuts, spoken, strict=True)
    ]
    scores = {
        "cpwer": cpwer(files, task.normalizer),
        "tcpwer": tcpwer(files, normalizer=task.normalizer),
        "der": der(turns),
    }
    if out is not None:
        figures = {
            "model": model,
            "diarizer": diarizer,
            "data": data,
            "records": len(cuts),
            "eval": {name: score.as_dict() for name, score in scores.items()},
            **dropped_figures(dropped),
        }
        rows = ({"id": f.id, "reference": list(f.reference), "output": f.hypothesis} for f in files)
        write_figures(out, figures, rows)
    text = "  ".join(f"{name} {figure(name, score.value)}" for name, score in scores.items())
    return f"{len(cuts)} records  {text}{left_out(dropped)}"


def _recordings(plan: BatchSampler, rate: int, cuts: list[Cut], dropped: DropCounter) -> Iterator[Recording]:
    """Each record that can be read; the records themselves are added to `cuts`."""
    from stentor.data.load_audio import load_audio
    from stentor.inference.recording import ArrayRecording

    for items in plan.epoch(0):
        for item in items:
            try:
                recording = ArrayRecording(load_audio(item.cut, rate), rate, rate, item.cut.id)
            except AudioError as error:
                dropped.add(error.reason, f"{item.cut.id}: {error}")
                continue
            cuts.append(item.cut)
            yield recording


def _said(cut: Cut) -> list[dict[str, Any]]:
    """What each speaker says: the record's supervisions with their texts, in seconds from its start."""
    return [
        {"speaker": s.speaker, "start": max(s.start, 0.0), "end": min(s.end, cut.duration), "text": s.text}
        for s in sorted(cut.supervisions, key=lambda s: s.start)
    ]
