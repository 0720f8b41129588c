"""`stentor evaluate ASR --diarizer MODEL2`: who said what, against references with speakers and texts."""

from typing import Any

from stentor.commands.evaluate.records import Recordings, left_out
from stentor.commands.evaluate_options import EvaluateOptions
from stentor.config.load import parse_source
from stentor.data.cut import Cut, language_of, segments_of, uem_of
from stentor.inference.options import DecodingOptions
from stentor.inference.recording import ArrayRecording, Recording
from stentor.inference.transcribe import Transcriber
from stentor.metrics.cpwer import Attributed, cpwer, tcpwer
from stentor.metrics.diarization import DiarizedRecording, der
from stentor.metrics.format import figure


def attributed(options: EvaluateOptions) -> str:
    """Transcribe whole recordings with speakers and score them: cpWER, tcpWER, and the DER of the diarizer.

    Returns the scores as text and writes them to `--json` when given, with `NAME.predictions.jsonl` beside it.
    """
    from stentor.inference.load import load

    source = parse_source(options.data)
    recogniser, second = load(str(options.model)), load(str(options.diarizer))
    task = recogniser.for_transcription()
    hear = second.speaker_segments()
    recordings = Recordings(options, recogniser, second.task, source)
    cuts, rate = recordings.cuts, recordings.rate
    spoken: list[list[dict[str, Any]]] = []

    def listened(recording: Recording) -> list[dict[str, Any]]:
        spoken.append(hear(recording))
        return spoken[-1]

    opened = (ArrayRecording(audio, rate, rate, cuts[-1].id) for audio in recordings.audio())
    decoding = DecodingOptions(words=recogniser.knows_times, keep_failed=True)
    transcripts = list(Transcriber(recogniser.bundle, task, decoding, str(options.model), listened).transcribe(opened))
    recordings.check("scored")
    files = [
        Attributed(cut.id, reference_words(cut), transcript, language_of(cut))
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
    rows = ({"id": f.id, "reference": list(f.reference), "output": f.hypothesis} for f in files)
    found = {name: score.as_dict() for name, score in scores.items()}
    recordings.write({"diarizer": options.diarizer, "eval": found}, rows)
    text = "  ".join(f"{name} {figure(name, score.value)}" for name, score in scores.items())
    return f"{len(cuts)} records  {text}{left_out(recordings.dropped)}"


def reference_words(cut: Cut) -> list[dict[str, Any]]:
    """Words of each speaker: the record's supervisions with their texts, in seconds from its start."""
    return [
        {"speaker": s.speaker, "start": max(s.start, 0.0), "end": min(s.end, cut.duration), "text": s.text}
        for s in sorted(cut.supervisions, key=lambda s: s.start)
    ]
