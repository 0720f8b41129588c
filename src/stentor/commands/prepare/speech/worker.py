"""Worker of `stentor prepare speech`: texts to speech with silence, rooms and noise, judged by a recogniser."""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.io import encode
from stentor.commands.prepare.speech.texts import Spoken
from stentor.commands.speak_many import LinesWorker, TextLine
from stentor.config.prepare.steps import SpeechAugment
from stentor.data.augment import change_speed
from stentor.data.cut import UnusableRecord, divided
from stentor.data.seeding import rng
from stentor.errors import ConfigError, StentorError
from stentor.pipeline.runner import RecordWithFiles, Results
from stentor.pipeline.worker import Worker
from stentor.tasks.speak.evaluator import evaluate_clips, evaluator_for

PEAK = 0.98
"""Highest sample: what is louder is made softer, so that nothing is clipped."""
FOLDER_ITEMS = 1000
"""Audio files in one folder."""

READ = {
    "CYRILLIC": "ba be bg bs cv hr kk ky lfn mk nog ru sl sr tt uk uz",
    "GREEK": "el grc",
    "ARABIC": "ar fa sd ug ur",
    "HEBREW": "he",
    "DEVANAGARI": "hi kok mr ne",
    "BENGALI": "as bn bpy",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "ORIYA": "or",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "MYANMAR": "my shn",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy hyw",
    "HANGUL": "ko",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh yue hak",  # not ja: the voice reads kana alone
    "ETHIOPIC": "am ti",
    "CHEROKEE": "chr",
    "SHAVIAN": "en",
}
"""By the first word of the Unicode names of its letters: the languages that espeak-ng 1.52 reads it in. In others it
says the letters' names, or only their script's."""


@dataclass
class Clip:
    """Speech of a text as it is stored."""

    spoken: Spoken
    audio: np.ndarray
    """Float32 [samples]."""
    rate: int
    """Hz."""
    words: list[dict[str, Any]]
    """With their times, where these are known."""


@dataclass
class SpeechWorker(Worker):
    """Texts to records with their audio. The record of an utterance that the recogniser gets wrong has a `reason`."""

    folder: Path
    augment: SpeechAugment
    lines: LinesWorker | None
    """Speaks with a model. None: the built-in voices speak."""
    recognizer: str | None
    max_wer: float
    labels: dict[str, Any]
    """Origin that all records name."""
    seed: int

    def setup(self, device: str) -> None:
        self.device = device
        if self.lines is not None:
            self.lines.setup(device)
        self.judge = None
        if self.recognizer is not None:
            self.judge = partial(evaluate_clips, evaluator_for(self.recognizer, "text"), device=device)
            self.judge([np.zeros(0, np.float32)], 16000)  # what cannot be loaded is said before anything is spoken

    def process(self, group: Sequence[Spoken]) -> Results:
        clips, rejects = divided(self._built_in(group) if self.lines is None else self._by_model(self.lines, group))
        recognized: list[str | None] = [None] * len(clips)
        if self.judge is not None and clips:
            recognized = self.judge([c.audio for c in clips], clips[0].rate, [c.spoken.language for c in clips])
        return [self._record(clip, text) for clip, text in zip(clips, recognized, strict=True)], rejects

    def _built_in(self, group: Sequence[Spoken]) -> Iterator[Clip | UnusableRecord]:
        from stentor.audio.synth import RATE, say

        for spoken in group:
            if script := unread_script(spoken.text, spoken.voice.language):
                unread = f"the voice {spoken.voice.name} does not read {script} letters ({spoken.text[:60]!r})"
                fix = "name the texts' language with --language, or leave them out"
                yield UnusableRecord(spoken.id, "script", f"{spoken.id}: {unread}: {fix}.")
                continue
            try:
                speech = say(**spoken.voice.call)
            except ConfigError as error:  # voices were checked before: the text is at fault
                yield UnusableRecord(spoken.id, "not_spoken", f"{spoken.id}: {error}")
                continue
            yield self._clip(spoken, speech.audio, RATE, speech.words)

    def _by_model(self, lines: LinesWorker, group: Sequence[Spoken]) -> Iterator[Clip | UnusableRecord]:
        by_number = {spoken.index: spoken for spoken in group}
        records = [_line(spoken) for spoken in group]
        for line, speech in lines.speak(records):
            spoken = by_number[line.number]
            if isinstance(speech, ConfigError):
                raise speech
            if isinstance(speech, StentorError):
                yield UnusableRecord(spoken.id, "not_spoken", f"{spoken.id}: {speech}")
            elif not speech.audio.any():
                yield UnusableRecord(spoken.id, "silent", f"{spoken.id}: the model said nothing.")
            else:
                yield self._clip(spoken, speech.audio, speech.rate, [])
        for message in lines.messages:
            print(f"stentor: {message}", file=sys.stderr, flush=True)
        lines.messages.clear()

    def _clip(self, spoken: Spoken, audio: np.ndarray, rate: int, words: list[dict[str, Any]]) -> Clip:
        """Speech after `augment`, which is drawn from the id alone."""
        generator, before, after = rng(self.seed, "speech", spoken.id), 0, 0
        if (speed := self.augment.speed_factor(generator)) != 1.0:
            audio = change_speed(audio, speed)
        if self.augment.silence is not None:
            before, after = (round(generator.uniform(*self.augment.silence) * rate) for _ in range(2))
        audio = self.augment.apply(np.pad(audio, (before, after)), generator, rate=rate)
        peak = float(np.abs(audio).max())
        audio = audio * np.float32(PEAK / peak) if peak > PEAK else audio
        times = [{k: round(w[k] / speed + before / rate, 5) for k in ("start", "end")} for w in words]
        return Clip(spoken, audio, rate, [{"word": w["word"], **t} for w, t in zip(words, times)])

    def _record(self, clip: Clip, recognized: str | None) -> RecordWithFiles:
        spoken = clip.spoken
        path = f"audio/{spoken.index // FOLDER_ITEMS:04d}/{spoken.index:07d}.flac"
        known = {
            "text": spoken.text,
            "language": spoken.language,
            "speaker": spoken.voice.speaker,
            "voice": spoken.voice.name,
        }
        record = {"id": spoken.id, "audio_path": path, "duration": round(len(clip.audio) / clip.rate, 6)}
        record |= {key: value for key, value in known.items() if value is not None}
        if clip.words:
            record["words"] = clip.words
        record |= {**self.labels, "labelled_by": self.labels.get("labelled_by", [spoken.voice.name])}
        if recognized is not None:
            wer = round(error_rate(spoken.text, recognized, spoken.language), 4)
            record |= {"confidence": max(0.0, round(1 - wer, 4)), "wer": wer, "recognized": recognized}
            if wer > self.max_wer:
                record |= {"reason": "wer", "value": wer, "threshold": self.max_wer}
        return RecordWithFiles(record, {self.folder / path: encode(clip.audio, clip.rate, spoken.id)})


def _line(spoken: Spoken) -> TextLine:
    record = {"id": spoken.id, "text": spoken.text, "language": spoken.language, **spoken.voice.call}
    return TextLine(spoken.index, {key: value for key, value in record.items() if value is not None})


def error_rate(text: str, recognized: str, language: str | None) -> float:
    """Errors of the recogniser's text per word of the text; of the normalisers that read numbers as words and as
    digits, the one by which they agree better counts, since recognisers write either."""
    from stentor.metrics.wer import rate, text_errors
    from stentor.text.languages import language_code
    from stentor.text.normalize import DEFAULT

    names = [DEFAULT, "whisper_english"] if language_code(language) in (None, "en") else [DEFAULT]
    return min(rate(text_errors(text, recognized, language, name)) for name in names)


def unread_script(text: str, language: str | None) -> str | None:
    """The script that over half of a text's letters are in, where the voice of this language does not read them."""
    letters = [c for c in unicodedata.normalize("NFKC", text) if c.isalpha()]
    scripts = Counter(re.split("[ -]", unicodedata.name(c, ""))[0] for c in letters)
    unread = Counter({s: n for s, n in scripts.items() if s != "LATIN" and language not in READ.get(s, "").split()})
    if 2 * unread.total() <= len(letters):
        return None
    script = unread.most_common(1)[0][0]
    return script if script == "CJK" else script.title()
