"""Rows: data sets as people write them."""

import json

from stranger_row import row
from stranger_sounds import talk, wav

REVIEW = "a review of this project, 2026-11"
CHECK = "prepare check %s --to report"
LINE = {"audio_path": "a.wav", "text": "one two three"}


def clips(folder, lines: str | bytes, name: str = "data.jsonl", **record) -> None:
    """Write a.wav and a manifest."""
    wav(folder / "a.wav")
    (folder / name).write_bytes(lines if isinstance(lines, bytes) else lines.encode())


@row("viggy28/recall/issues/38", CHECK % "data.jsonl", says=("1 record",))
def a_manifest_with_a_byte_order_mark(folder):
    clips(folder, b"\xef\xbb\xbf" + json.dumps(LINE).encode() + b"\r\n")


@row("NVIDIA-NeMo/Speech/issues/2234", CHECK % "data.jsonl", says=("1 record", "JSON object"))
def a_manifest_that_is_spread_over_lines(folder):
    clips(folder, json.dumps(LINE, indent=2))


@row("NVIDIA-NeMo/Speech/issues/4156", CHECK % "data.jsonl", code=3, says=("data.jsonl", "line"))
def a_manifest_with_two_objects_on_a_line(folder):
    clips(folder, 2 * json.dumps(LINE))


@row("NVIDIA-NeMo/Speech/issues/3590", CHECK % "data.jsonl", says=("1 record", "JSON list"))
def a_manifest_that_is_a_list(folder):
    clips(folder, json.dumps([LINE]))


RTTM = "prepare check type=rttm,path=ref.rttm,audio=. --to report"


def turns(folder, *lines: str) -> None:
    """Write meeting.wav and ref.rttm."""
    wav(folder / "meeting.wav", talk(1, 1))
    (folder / "ref.rttm").write_text("".join(line + "\n" for line in lines))


@row("pyannote/pyannote-database/issues/86", RTTM, says=("1 record",))
def an_rttm_that_lists_its_speakers(folder):
    turns(
        folder,
        "SPKR-INFO meeting 1 <NA> <NA> <NA> adult_male ann <NA> <NA>",
        "SPEAKER meeting 1 0.0 0.7 <NA> <NA> ann <NA> <NA>",
    )


@row("fgnt/meeteval/pull/60", RTTM, says=("1 record",))
def an_rttm_without_its_last_fields(folder):
    turns(folder, "SPEAKER meeting 1 0.0 0.7 <NA> <NA> ann")


@row("pyannote/pyannote-core/pull/41", RTTM, code=3, says=("ref.rttm", "space"), later="issue 60")
def an_rttm_with_a_space_in_a_name(folder):
    turns(folder, "SPEAKER meeting 1 0.0 0.7 <NA> <NA> Speaker 1 <NA> <NA>")


@row("srvk/DiViMe/issues/53", RTTM, code=3, says=("ref.rttm",))
def an_rttm_with_a_negative_length(folder):
    turns(folder, "SPEAKER meeting 1 0.5 -0.2 <NA> <NA> ann <NA> <NA>")


@row("pyannote/pyannote-audio/issues/338", RTTM, code=3, says=("meeting",))
def an_rttm_of_another_recording(folder):
    turns(folder, "SPEAKER other 1 0.0 0.7 <NA> <NA> ann <NA> <NA>")


@row("NVIDIA-NeMo/Speech/issues/8100", "prepare check type=rttm,path=out,audio=. --to report", later="issue 60")
def an_rttm_of_a_name_with_a_space(folder):
    wav(folder / "my vocals.wav")
    (folder / "out").mkdir()
    (folder / "out" / "my vocals.rttm").write_text("SPEAKER my_vocals 1 0.0 0.7 <NA> <NA> ann <NA> <NA>\n")


@row("rhasspy/piper/issues/368", CHECK % "metadata.csv", says=("2 records",))
def metadata_of_piper_with_speakers(folder):
    for name in ("1", "2"):
        wav(folder / "wav" / f"{name}.wav")
    (folder / "metadata.csv").write_text("wav/1.wav|male1|one two three\nWav/2.wav|male1|one two three\n")


@row("rhasspy/piper/issues/147", CHECK % "metadata.csv", says=("1 record",))
def metadata_with_a_single_quotation_mark(folder):
    clips(folder, 'a|one "two three\n', "metadata.csv")


@row("coqui-ai/TTS/issues/3050", CHECK % "metadata.csv", says=("1 record",))
def metadata_of_coqui(folder):
    clips(folder, "audio_file|text|speaker_name\na.wav|one two three|ann\n", "metadata.csv")


@row(REVIEW, CHECK % "data.jsonl", says=("1 record",))
def transcripts_in_the_layout_of_qwen3_asr(folder):
    clips(folder, json.dumps({"audio": "a.wav", "text": "language English<asr_text>one two three"}))


@row(REVIEW, CHECK % "data.jsonl", says=("unaligned",))
def words_that_voxlm_could_not_align(folder):
    words = [{"word": w, "start": a, "end": b} for w, a, b in (("one", 0, 0.2), ("two", 0, 0), ("three", 0.4, 0.7))]
    clips(folder, json.dumps({**LINE, "words": words}))


@row(REVIEW, CHECK % "data.jsonl --model {whisper}", says=("<|0.00|>",))
def names_of_control_tokens_in_a_transcript(folder):
    clips(folder, json.dumps({**LINE, "text": "<|0.00|> one two three<|endoftext|>"}))


def segments(folder, *spans: tuple[str, float, float]) -> None:
    """Write a.wav and a manifest of a conversation."""
    rows = [{"speaker": name, "start": a, "end": b} for name, a, b in spans]
    clips(folder, json.dumps({"audio_path": "a.wav", "segments": rows}))


@row(
    "pyannote/pyannote-audio/issues/984",
    CHECK % "data.jsonl",
    code=3,
    says=("a.wav",),
    later="issue 60: one rule for segments",
)
def segments_beyond_the_end_of_the_audio(folder):
    segments(folder, ("ann", 0, 100))


@row(
    "pyannote/pyannote-audio/issues/73",
    CHECK % "data.jsonl",
    code=3,
    says=("milliseconds",),
    later="issue 60: one rule for segments",
)
def segments_in_milliseconds(folder):
    segments(folder, ("ann", 100, 300), ("ben", 300, 700))


@row(REVIEW, "speak {voice} '<speak>one</speak>' --out a.wav", says=("<speak>",), later="issue 59: SSML")
def a_text_in_ssml(folder):
    pass
