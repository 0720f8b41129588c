"""Speech that a model has said, for the report: the recording, the best its codec could do, and what was said, at the
end and on the way there, each as a player above its spectrogram."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stentor.data.audio_base64 import decode_audio, encode_audio, is_encoded_audio
from stentor.errors import StentorError
from stentor.report.run_folder import RunFolder
from stentor.report.sounds import LONGEST, RATE, SoundBudget, samples_of

STEPS = 6
"""Evaluations of which an item is heard, the first and the last among them."""
MOST = 8
"""Items of each set."""


@dataclass
class Strip:
    """A sound as it is shown."""

    label: str
    note: str
    seconds: float
    sound: str
    """A data: URL."""
    picture: str
    """Its spectrogram, a data: URL."""
    width: float = 100.0
    """Percent of the width that the longest strip of the card takes."""
    prompt: float = 0.0
    """Percent of the strip, at its beginning, that are the recording's own."""
    transcript: str = ""
    """Transcript by a recogniser."""


@dataclass
class SpokenExample:
    """One record that was spoken."""

    id: str
    text: str
    facts: list[str]
    """The voice asked for, the language."""
    strips: list[Strip]
    """The recording, its codec tokens decoded, what was said: of these what there is."""
    earlier: list[Strip]
    """Speech from before training and from the evaluations, in this order."""


@dataclass
class SpokenSet:
    """The spoken records of one evaluation set."""

    name: str
    items: int
    """Records that the loss is over; 0 when unknown."""
    voices: list[SpokenExample] = field(default_factory=list)


def voiced_sets(run: RunFolder, budget: SoundBudget) -> list[SpokenSet]:
    """The spoken records of each evaluation set, from the final predictions; of a run without them yet, from its newest
    samples. First every record gets its final sounds, then, while the budget lasts, those of earlier steps."""
    finals = {name: [r for r in rows if is_encoded_audio(_audio(r))][:MOST] for name, rows in run.predictions.items()}
    stage = run.samples[-1].get("stage") if run.samples else None
    samples = [r for r in run.samples if isinstance(_audio(r), Mapping) and r.get("stage") == stage]
    names = [n for n in dict.fromkeys([*finals, *(r["set"] for r in samples)]) if n not in finals or finals[n]]
    sets = []
    for name in names:
        rows_of_set = [r for r in samples if r["set"] == name]
        last = max((r["step"] for r in rows_of_set), default=0)
        rows = finals.get(name) or [r for r in rows_of_set if r["step"] == last][:MOST]
        score: Mapping[str, Any] = next(iter((run.results.get("eval") or {}).get(name, {}).values()), {})
        spoken = SpokenSet(name, (score.get("details") or {}).get("items", 0))
        for row in rows:
            step = None if name in finals else row["step"]
            if (voice := _voice(run, row, step, budget)) is not None:
                spoken.voices.append(voice)
        sets.append((spoken, rows_of_set, last if name in finals else last - 1))
    for spoken, rows_of_set, last in sets:
        for voice in spoken.voices:
            rows = [r for r in rows_of_set if r["id"] == voice.id and r["step"] <= last]
            rows.sort(key=lambda r: r["step"])
            first = [r for r in run.before.get(spoken.name, []) if r["id"] == voice.id]
            for row in [*first, *spread(rows, STEPS)]:
                label = f"step {row['step']:,}" if "step" in row else "before training"
                strip = _strip(budget, label, "", _sound(run, _audio(row)))
                if strip is not None:
                    strip.prompt = _prompt(row, strip)
                    voice.earlier.append(strip)
            _scale(voice)
    return [spoken for spoken, _, _ in sets if spoken.voices]


def spread(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the rows, evenly, with the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def _strip(budget: SoundBudget, label: str, note: str, sound: Mapping[str, Any] | None) -> Strip | None:
    """None without a sound, for one that is too long, and when the budget is spent."""
    from stentor.report.spectrogram import png, spectrogram

    if sound is None or len(sound["flac"]) > budget.left:
        return None
    samples = decode_audio(sound)
    seconds = len(samples) / sound["rate"]
    if not 0 < seconds <= LONGEST:
        return None
    picture = base64.b64encode(png(spectrogram(samples, sound["rate"]))).decode()
    if not budget.take(sound["flac"], picture):
        return None
    return Strip(label, note, seconds, f"data:audio/flac;base64,{sound['flac']}", f"data:image/png;base64,{picture}")


def _voice(run: RunFolder, row: Mapping[str, Any], step: int | None, budget: SoundBudget) -> SpokenExample | None:
    reference, output, record = row.get("reference") or {}, row["output"], row.get("record") or {}
    speech = _strip(budget, "spoken" if step is None else f"spoken, step {step:,}", "", _sound(run, output["audio"]))
    if speech is None:
        return None
    if prompt := output.get("prompt_seconds"):
        speech.note, speech.prompt = f"the first {prompt:.1f} s are the recording's own", _prompt(row, speech)
    recording = _strip(budget, "recording", "", _recording(record))
    best = "the recording's codec tokens: the best that could be said"
    codec = _strip(budget, "codec", best, _sound(run, output.get("codec")))
    labels = (("voice", "instruct"), ("speaker", "speaker"), ("", "language"))
    facts = list(dict.fromkeys(f"{kind} {reference[key]}".strip() for kind, key in labels if reference.get(key)))
    if reference.get("instruct") == reference.get("speaker"):
        facts = [f for f in facts if not f.startswith("speaker ")]
    # Of stentor.tasks.speak.evaluator_scores.evaluate_items.
    transcripts = (output.get("heard") or {}).get("text") or {}
    for strip, column in ((speech, "synthetic"), (codec, "codec"), (recording, "real")):
        if strip is not None and column in transcripts:
            strip.transcript = transcripts[column] or "(nothing)"
    strips = [s for s in (recording, codec, speech) if s is not None]
    return SpokenExample(str(row["id"]), str(reference.get("text") or ""), facts, strips, [])


def _prompt(row: Mapping[str, Any], strip: Strip) -> float:
    return min(100.0, 100 * (row["output"].get("prompt_seconds") or 0.0) / strip.seconds)


def _scale(voice: SpokenExample) -> None:
    """Widths that go with the seconds."""
    longest = max(s.seconds for s in [*voice.strips, *voice.earlier])
    for strip in [*voice.strips, *voice.earlier]:
        strip.width = round(100 * strip.seconds / longest, 2)


def _audio(row: Mapping[str, Any]) -> Any:
    return (row.get("output") or {}).get("audio")


def _sound(run: RunFolder, audio: Any) -> Mapping[str, Any] | None:
    """A sound that lies in the row itself or in a file of the run folder; None when there is none any more."""
    if is_encoded_audio(audio):
        return audio
    if not isinstance(audio, Mapping) or "file" not in audio:
        return None
    from stentor.data.load_audio import load_record

    try:
        samples = load_record({"audio_path": str(run.folder / audio["file"])}, audio["rate"])
    except StentorError:
        return None
    return None if samples is None else encode_audio(samples, audio["rate"])


def _recording(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """None for records of codec tokens alone, and where the file cannot be read any more."""
    samples = samples_of(record)
    return None if samples is None else encode_audio(samples, RATE)
