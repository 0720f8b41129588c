"""Rows: texts and times, as `align` and subtitles give them."""

from pathlib import Path

from stranger_row import row
from stranger_sounds import clip, talk, wav

ALIGN = "align {ctc} a.wav %s --format json"


def beside(folder: Path, name: str, text: str | bytes, audio=None) -> None:
    """Write the recording a.wav and a text."""
    wav(folder / "a.wav", audio)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


@row("m-bain/whisperX/issues/559", ALIGN % "'one 2266 three'", says=('"word": "2266"', '"confidence": 0.0'))
def a_number_among_words(folder):
    wav(folder / "a.wav")


@row("m-bain/whisperX/issues/98", ALIGN % "15.09.2021", says=('"word": "15.09.2021"',))
def a_date_alone(folder):
    wav(folder / "a.wav")


@row("m-bain/whisperX/issues/419", ALIGN % "'one ? two — three'", says=('"start"',))
def punctuation_that_stands_alone(folder):
    wav(folder / "a.wav")


@row("m-bain/whisperX/issues/1104", ALIGN % "'one $43,000. three'", says=('"word": "$43,000."',))
def an_amount_of_money(folder):
    wav(folder / "a.wav")


@row("m-bain/whisperX/issues/1446", ALIGN % "'one two three one two three'", says=('"end": 1.',))
def words_that_are_said_twice(folder):
    wav(folder / "a.wav", talk(0.5))


@row(
    "m-bain/whisperX/issues/404",
    ALIGN % "'one two three four five six seven eight nine zero one two three'",
    code=3,
    says=("a.wav", "too long"),
)
def more_words_than_the_audio_has(folder):
    wav(folder / "a.wav", clip()[:6000])


@row("lhotse-speech/lhotse/issues/891", "transcribe {words} a.wav --words --format json")
def no_word_ends_before_it_begins(folder):
    wav(folder / "a.wav", talk(2.1, 0.1, 3))


@row("srvk/eesen/issues/88", ALIGN % "gone/text.txt", code=2, says=("gone/text.txt",))
def a_text_file_that_is_not_there(folder):
    wav(folder / "a.wav")


@row("EricWilbanks/faseAlign/issues/4", ALIGN % "text.txt", says=('"text": "one two three"',))
def a_text_with_a_byte_order_mark(folder):
    beside(folder, "text.txt", b"\xef\xbb\xbfone two three\r\n")


@row("openspeech-team/openspeech/issues/71", ALIGN % "text.txt", code=3, says=("text.txt", "UTF-8"))
def a_text_in_the_encoding_of_an_old_windows(folder):
    beside(folder, "text.txt", "caf\xe9 drei".encode("cp1252"))


GRID = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n'


@row("MontrealCorpusTools/Montreal-Forced-Aligner/issues/841", ALIGN % "a.TextGrid", says=('"text": "one two three"',))
def a_text_grid_as_praat_writes_it(folder):
    interval = (
        '        intervals [1]:\n            xmin = 0\n            xmax = 0.7\n            text = "one two three"\n'
    )
    tier = (
        '    item [1]:\n        class = "IntervalTier"\n        name = "words"\n        xmin = 0\n        xmax = 0.7\n'
    )
    head = GRID + "xmin = 0\nxmax = 0.7\ntiers? <exists>\nsize = 1\nitem []:\n"
    beside(folder, "a.TextGrid", (head + tier + "        intervals: size = 1\n" + interval).encode("utf-16"))


@row("MontrealCorpusTools/Montreal-Forced-Aligner/issues/212", ALIGN % "a.TextGrid", says=('"text": "one two three"',))
def a_text_grid_in_the_short_form(folder):
    beside(
        folder,
        "a.TextGrid",
        GRID + '0\n0.7\n<exists>\n1\n"IntervalTier"\n"words"\n0\n0.7\n1\n0\n0.7\n"one two three"\n',
    )


@row(
    "MontrealCorpusTools/Montreal-Forced-Aligner/issues/298",
    "align {ctc} in --format txt --out out",
    code=3,
    files=("A.txt",),
    says=("lonely.lab",),
)
def lab_files_with_capital_suffixes(folder):
    wav(folder / "in" / "A.WAV")
    (folder / "in" / "A.LAB").write_text("one two three")
    (folder / "in" / "lonely.lab").write_text("one two three")


@row("m-bain/whisperX/issues/310", "align {ctc} a.wav text.txt --format srt", says=("1998年iPhone 15 Proを買った",))
def japanese_with_digits_and_latin_words(folder):
    beside(folder, "text.txt", "1998年iPhone 15 Proを買った")


@row("rany2/edge-tts/issues/167", "align {ctc} a.wav text.txt --format vtt", says=("在忙碌和挑战中，我们的内心",))
def chinese_with_punctuation(folder):
    beside(folder, "text.txt", "在忙碌和挑战中，我们的内心")


@row("m-bain/whisperX/issues/1315", "transcribe {words} a.wav --format srt", starts=(0, 3.72))
def cues_start_with_their_words(folder):
    wav(folder / "a.wav", talk(3))


@row("chidiwilliams/buzz/issues/1339", "transcribe {words} a.wav --format vtt", starts=(0, 8.72))
def a_cue_does_not_stay_through_a_long_silence(folder):
    wav(folder / "a.wav", talk(8))


@row("ggml-org/whisper.cpp/pull/2279", "transcribe {words} a.wav --words --cues words --format srt")
def no_two_cues_overlap(folder):
    wav(folder / "a.wav", talk(2.1, 2.1))


@row(
    "m-bain/whisperX/issues/621",
    "transcribe {words} a.wav --format srt --max-line-width 8 --max-line-count 1",
    says=("one two\n",),
)
def one_line_of_eight_columns(folder):
    wav(folder / "a.wav")


@row("openai/whisper/pull/1184", "transcribe {words} a.wav --format vtt --highlight-words", says=("<c>",))
def highlighted_words(folder):
    wav(folder / "a.wav")


@row("openai/whisper/pull/1039", "transcribe {words} a.wav --format tsv", says=("start\tend\ttext",))
def a_table_as_whisper_writes_it(folder):
    wav(folder / "a.wav")


@row(
    "m-bain/whisperX/issues/251",
    "transcribe {words} a.wav --language English --format json",
    says=('"language": "en"',),
)
def a_language_by_its_name(folder):
    wav(folder / "a.wav")


@row("ctsdownloads/easyspeak/pull/177", "transcribe {words} a.wav --language klingon", code=2, says=("klingon",))
def a_language_that_does_not_exist(folder):
    wav(folder / "a.wav")


@row("QwenAudio/CosyVoice/pull/710", "speak {voice} '...!?' --out a.wav", code=3, says=("speak",))
def a_text_of_punctuation(folder):
    pass


@row("RHVoice/RHVoice/issues/121", "speak {voice} '***' --out a.wav", code=3, says=("speak",))
def a_row_of_stars(folder):
    pass


@row("capacitor-community/text-to-speech/issues/32", "speak {voice} '' --out a.wav", code=2, says=("empty",))
def an_empty_text(folder):
    pass
