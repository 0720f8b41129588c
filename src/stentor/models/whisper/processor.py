"""Examples to batches for Whisper. Holds no torch module, so that it can be sent to loader workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lhotse.cut import Cut
from torch import Tensor

from stentor.audio.features import HOP, RATE, WINDOW, WhisperMel
from stentor.data.batch import Batch, Example
from stentor.data.cut import language_of, text_of
from stentor.models.collate import mask_features, num_samples, split_usable

FRAMES = WINDOW // HOP // 2
"""Encoder positions of the window."""
SILENCE = RATE
"""Samples of silence, at least, that follow the longest clip of a batch that does not fill the window."""
GRAIN = RATE // 2
"""Samples that a shorter window is a multiple of: few different shapes."""
TICK = 0.02
"""Seconds from one timestamp token to the next."""
PAUSE = 0.5
"""Seconds of silence between two words from which on they lie in two timestamped segments."""
SENTENCE_ENDS = tuple(".!?。！？")
SPACELESS = ("zh", "ja", "th", "lo", "my", "yue")
"""Languages whose texts Whisper begins without a space."""


class WhisperProcessor:
    """Features, prompt tokens and labels of Whisper.

    `tokenizer`: a WhisperTokenizer; `mels`: bands of the log-mel; `most`: decoder positions; `multilingual`: whether
    prompts name language and task; `timestamps`: share of items with known word times (`Example.extra["times"]`,
    `{"word", "start", "end"}` in seconds) that are trained with timestamp tokens; `full_window`: share of the training
    batches whose features fill the window of 30 s.
    """

    sample_rate = RATE
    max_seconds = WINDOW / RATE
    ctc = None

    def __init__(
        self,
        tokenizer: Any,
        mels: int,
        most: int,
        multilingual: bool,
        timestamps: float,
        token_rate: float,
        full_window: float = 1.0,
    ):
        from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

        self.tokenizer, self.mels, self.most = tokenizer, mels, most
        self.timestamps, self.token_rate, self.full_window = timestamps, token_rate, full_window
        self.eos_id = int(tokenizer.eos_token_id)
        vocabulary = tokenizer.get_vocab()
        self.start_id: int = vocabulary["<|startoftranscript|>"]
        self.transcribe_id: int = vocabulary["<|transcribe|>"]
        self.plain_id: int = vocabulary["<|notimestamps|>"]
        known = {code: vocabulary[f"<|{code}|>"] for code in LANGUAGES if f"<|{code}|>" in vocabulary}
        self.languages: dict[str, int] = known if multilingual else {}
        self._codes: dict[str, str] = {code: code for code in LANGUAGES} | TO_LANGUAGE_CODE
        self._mel: WhisperMel | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mel": None}

    # Lengths, from metadata alone

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Positions of encoder (those of the 30 s window, the most that a batch can be given) and decoder."""
        text = self._ids(text_of(cut) or "", self.code(language_of(cut)))
        return FRAMES + (4 if self.languages else 2) + len(text)

    def max_new_tokens(self, seconds: float) -> int:
        """Most tokens that generation may write for so much audio."""
        return min(int(seconds * self.token_rate) + 16, self.most - 4)

    # Tokens

    def code(self, language: str | None) -> str | None:
        """Whisper's code of a language that a record names by code, locale (`en-US`) or English name; None when it
        names none or one that is not Whisper's."""
        name = (language or "").strip().lower()
        return self._codes.get(name) or self._codes.get(name.replace("_", "-").partition("-")[0])

    def drop_reason(self, language: str | None) -> str | None:
        """Why a record of this language cannot be used; None when it can."""
        if not language:
            return None
        code = self.code(language)
        if not self.languages:
            return None if code == "en" else f"its language is {language!r}, and this Whisper knows English only"
        if code in self.languages:
            return None
        return f"this Whisper knows no language {language!r}; leave it out to have it heard, or give a code such as en"

    def prompt(self, language: str | None, timed: bool = False) -> list[int]:
        """The tokens before the text. A language to be detected is held by a second start token."""
        prompt = [self.start_id]
        if self.languages:
            code = self.code(language)
            prompt += [self.languages[code] if code else self.start_id, self.transcribe_id]
        return prompt if timed else [*prompt, self.plain_id]

    def previous(self, example: Example) -> list[int]:
        """The tokens of the text that is said to come before (`extra["prompt"]`), its last ones where it is long, as
        in `WhisperTokenizer.get_prompt_ids`; none without one."""
        text = (example.extra.get("prompt") or "").strip()
        if not text:
            return []
        ids = self.tokenizer(f" {text}", add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [self.tokenizer.get_vocab()["<|startofprev|>"], *ids[-(self.most // 2 - 1) :]]

    def named_language(self, ids: Sequence[int]) -> str | None:
        """The code of a language token."""
        return next((code for code, token in self.languages.items() if token in ids), None)

    def _ids(self, text: str, code: str | None) -> list[int]:
        """Whisper was trained on texts that begin with a space, where the language has spaces."""
        text = text.strip() if code in SPACELESS else f" {text.strip()}"
        return self.tokenizer(text, add_special_tokens=False)["input_ids"] if text.strip() else []

    def timed_ids(self, text: str, times: Sequence[dict[str, Any]], code: str | None) -> list[int] | None:
        """The text as segments between timestamp tokens; None when the timed words are not those of the text.

        Segments end at sentence ends and pauses, and times are rounded to 20 ms, as Whisper writes them.
        """
        separator = "" if code in SPACELESS else " "
        pieces = text.split()
        if len(pieces) != len(times):
            pieces = [w["word"] for w in times]
            if separator or "".join(pieces) != "".join(text.split()):
                return None
        if not pieces or times[-1]["end"] > self.max_seconds:
            return None
        ids: list[int] = []
        first = 0
        for i, word in enumerate(times):
            last = i == len(times) - 1
            if last or pieces[i].endswith(SENTENCE_ENDS) or times[i + 1]["start"] - word["end"] >= PAUSE:
                segment = self._ids(separator.join(pieces[first : i + 1]), code)
                ids += [self._timestamp(times[first]["start"]), *segment, self._timestamp(word["end"])]
                first = i + 1
        return ids

    def _timestamp(self, seconds: float) -> int:
        return self.plain_id + 1 + round(seconds / TICK)

    def sequence(self, example: Example) -> tuple[list[int], int]:
        """The tokens of a training item, end token included, and how many of them are its prompt."""
        code = self.code(example.language)
        if example.rng is not None and (times := example.extra.get("times")):
            drawn = example.rng.random() < self.timestamps
            timed = self.timed_ids(example.text or "", times, code) if drawn else None
            prompt = self.prompt(example.language, timed=True)
            if timed and len(prompt) + len(timed) <= self.most:
                return [*prompt, *timed, self.eos_id], len(prompt)
        prompt = self.prompt(example.language)
        return [*prompt, *self._ids(example.text or "", code), self.eos_id], len(prompt)

    # Batches

    def features(self, examples: Sequence[Example]) -> Tensor:
        """Log-mel [B, mels, 3000] of clips of at most 30 s, equal to WhisperFeatureExtractor's to 1e-4."""
        self._mel = self._mel or WhisperMel(self.mels, pad_to_30s=True)
        features, lengths = self._mel([e.audio for e in examples if e.audio is not None])
        mask_features(features, lengths, examples)
        return features

    def window(self, examples: Sequence[Example]) -> int:
        """Samples of the encoder's input for a batch.

        All 30 s in evaluation and inference (items without `rng`) and in the share `full_window` of the training
        batches, drawn from the first item's generator; else the longest clip, `SILENCE`, and what fills up to `GRAIN`.
        """
        rng = examples[0].rng
        if rng is None or self.full_window == 1 or rng.random() < self.full_window:
            return WINDOW
        longest = max(num_samples(e) for e in examples)
        return min(WINDOW, -(-(longest + SILENCE) // GRAIN) * GRAIN)

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch for training (`labels`) or for generation.

        Clips over 30 s, transcripts over the decoder's positions and unknown languages are left out and listed in
        `Batch.dropped`; in a batch for generation they raise DataError. The language token is learnt where the
        language is known; the other tokens of the prompt are given, not learnt.
        """
        sequences = [self.sequence(e) if labels else (self.previous(e) + self.prompt(e.language), 0) for e in examples]
        reasons = [self._drop_reason(e, len(ids)) for e, (ids, _) in zip(examples, sequences)]
        usable, dropped = split_usable(examples, reasons, labels)
        if not usable:
            return Batch(inputs={}, counts={}, ids=[], dropped=dropped)
        examples, sequences = [examples[i] for i in usable], [sequences[i] for i in usable]
        # The window is drawn last, so that augmentation is the same whatever `full_window` is.
        features = self.features(examples)
        inputs = {"features": features[:, :, : self.window(examples) // HOP]}
        fed = [ids[:-1] if labels else ids for ids, _ in sequences]
        width = max(map(len, fed))
        inputs["input_ids"] = torch.tensor([[*ids, *[self.eos_id] * (width - len(ids))] for ids in fed])
        if self.languages:
            inputs["detect"] = torch.tensor([self.code(e.language) is None for e in examples])
        counts = {}
        if labels:
            index: list[int] = []
            targets: list[int] = []
            for row, ((ids, prompt), example) in enumerate(zip(sequences, examples)):
                named = [1] if self.languages and self.code(example.language) else []
                for place in (*named, *range(prompt, len(ids))):
                    index.append(row * width + place - 1)
                    targets.append(ids[place])
            inputs["label_index"], inputs["targets"] = torch.tensor(index), torch.tensor(targets)
            counts["text"] = len(targets)
        samples = sum(num_samples(e) for e in examples)
        return Batch(
            inputs=inputs,
            counts=counts,
            ids=[e.id for e in examples],
            seconds=samples / RATE,
            tokens=samples // (2 * HOP) + sum(map(len, fed)),
            num_positions=len(examples) * (inputs["features"].shape[2] // 2 + width),
            dropped=dropped,
        )

    def _drop_reason(self, example: Example, tokens: int) -> tuple[str, str] | None:
        """(reason, sentence) for an example, of so many tokens with its prompt, that cannot be used."""
        if num_samples(example) > WINDOW:
            reason, message = "too_long", f"{num_samples(example) / RATE:.1f} s of audio; Whisper reads 30 s"
        elif unknown := self.drop_reason(example.language):
            reason, message = "unknown_language", unknown
        elif tokens - 1 > self.most:
            reason, message = "text_too_long", f"{tokens} tokens of text; this Whisper writes at most {self.most}"
        else:
            return None
        return reason, f"{example.id}: {message}."

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special and timestamp tokens."""
        return self.tokenizer.decode([i for i in ids if i <= self.plain_id], skip_special_tokens=True)

    # Files

    def save(self, folder: Path) -> None:
        """Write what transformers' WhisperProcessor reads: tokenizer and feature extractor."""
        from transformers import WhisperFeatureExtractor
        from transformers import WhisperProcessor as Plain

        Plain(WhisperFeatureExtractor(feature_size=self.mels), self.tokenizer).save_pretrained(folder)
