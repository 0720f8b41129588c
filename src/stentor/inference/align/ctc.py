"""Word times from a CTC model: the model's best path that spells the text (see `stentor.inference.align.viterbi`).

Any CTC model of transformers, or the CTC head of a speech LLM of ours. Characters that the model cannot write are
spelled with a wildcard, which is any sound. Emissions of long audio are made in windows that overlap, and only of the
classes that the text has; the path is found over all of it at once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.inference.align.base import Aligned, Clip, Word
from stentor.inference.align.boundaries import spread
from stentor.inference.align.viterbi import WILDCARD, Path, viterbi, with_wildcard
from stentor.tasks.words import units

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path as File

    from stentor.models.base import Bundle

WINDOW, CONTEXT = 24.0, 2.0
"""Seconds of long audio that are kept of each window, and heard besides on either side."""
PENALTY = 1.0
"""What a wildcard loses at a frame without sound, in nats."""
MISMATCH = 2.0
"""Text whose path is so much worse than the best path without a text, in nats per label, is not what was said: of 149
utterances with a model of 64 % WER 99 % had at most 0.7, and with the text of another 99 % had more than this."""


class Acoustic(Protocol):
    """A CTC model."""

    rate: int
    """Samples per second that it hears."""
    hop: int
    """Samples between frames."""
    longest: float | None
    """Seconds that it hears at a time at most."""
    blank: int
    device: torch.device

    def log_probs(self, clips: Sequence[np.ndarray]) -> list[Tensor]:
        """Log-probabilities [T, C] of each clip, float32."""

    def spell(self, text: str) -> list[tuple[int, int]]:
        """(class, place in the text) of everything that is written, in order; `WILDCARD` for what has no class."""

    def decode(self, classes: Sequence[int]) -> str:
        """Text of the best classes, one per frame."""


class CTCAligner:
    """Word times of known texts from a CTC model."""

    def __init__(self, acoustic: Acoustic):
        self.acoustic = acoustic
        self.rate = acoustic.rate
        self.longest = None

    @torch.no_grad()
    def align(self, clips: Sequence[Clip], transcribe: bool = False) -> list[Aligned]:
        """Word times of each clip; with `transcribe` also what the model hears there by itself."""
        emissions, spelled, heard, best = [], [], [], []
        for clip, whole in zip(clips, self._heard(clips)):
            labels, owner = spelling(self.acoustic, clip.text, units(clip.text, clip.language))
            emission, places, free, text = self._emission(whole, labels, transcribe)
            emissions.append(emission)
            spelled.append((places, owner))
            best.append(free)
            heard.append(text)
        paths = viterbi(emissions, [places for places, _ in spelled])
        return [
            self._aligned(clip, path, emission, labels, owner, free, text)
            for clip, path, emission, (labels, owner), free, text in zip(clips, paths, emissions, spelled, best, heard)
        ]

    def _heard(self, clips: Sequence[Clip]) -> list[list[Tensor] | Clip]:
        """The emissions of short clips together; long ones are heard later, piece by piece."""
        longest = min(self.acoustic.longest or 30.0, 30.0) * self.rate
        short = [clip for clip in clips if clip.samples <= longest]
        made = iter(self.acoustic.log_probs([clip.read(0, clip.samples) for clip in short])) if short else iter(())
        return [[next(made)] if clip.samples <= longest else clip for clip in clips]

    def _emission(
        self, heard: list[Tensor] | Clip, labels: list[int], transcribe: bool
    ) -> tuple[Tensor, list[int], np.ndarray, str | None]:
        """The columns that the labels need (blank first, wildcard last), the labels as places in them, the best
        log-probability of each frame [T], and the text of the best path."""
        classes = sorted(set(labels) - {WILDCARD})
        place = {c: i for i, c in enumerate(classes, 1)} | {WILDCARD: WILDCARD}
        columns = [self.acoustic.blank, *classes]
        wild = WILDCARD in labels
        parts, free, written = [], [], []
        for piece in heard if isinstance(heard, list) else self._pieces(heard):
            full = with_wildcard(piece, self.acoustic.blank, PENALTY) if wild else piece
            parts.append(full[:, [*columns, full.shape[1] - 1] if wild else columns])
            top = piece.max(-1)
            free.append(top.values.cpu().numpy())
            written.append(top.indices.cpu().numpy())
        text = self.acoustic.decode(np.concatenate(written).tolist()) if transcribe else None
        return torch.cat(parts), [place[c] for c in labels], np.concatenate(free), text

    def _pieces(self, clip: Clip) -> Iterator[Tensor]:
        """Emissions of a long clip, a window at a time, each heard with some audio before and after."""
        hop = self.acoustic.hop
        longest = min(self.acoustic.longest or 30.0, WINDOW + 2 * CONTEXT)
        around = round(CONTEXT * self.rate / hop)  # frames
        kept = int(longest * self.rate / hop) - 2 * around
        total = max(1, clip.samples // hop)
        for begin in range(0, total, kept):
            first = max(0, begin - around)
            audio = clip.read(first * hop, min(clip.samples, (begin + kept + around) * hop))
            (made,) = self.acoustic.log_probs([audio])
            last = begin + kept >= total
            yield made[begin - first :] if last else made[begin - first : begin - first + kept]

    def _aligned(
        self,
        clip: Clip,
        path: Path | None,
        emission: Tensor,
        labels: list[int],
        owner: list[int],
        free: np.ndarray,
        heard: str | None,
    ) -> Aligned:
        words = units(clip.text, clip.language)
        if not words:
            return Aligned([], heard=heard, reason="no_words")
        if path is None:
            return Aligned([], heard=heard, reason="too_long_text")
        frame = self.acoustic.hop / self.rate
        first, after = path.labels(len(labels))
        said = emission.cpu().numpy()[np.arange(len(path.states)), column(path, labels)]
        owners = np.array(owner)
        times: list[Word] = []
        for i, word in enumerate(words):
            own = np.flatnonzero(owners == i)
            heard_at = [np.arange(first[k], after[k]) for k in own if labels[k] != WILDCARD]
            sure = float(np.exp(said[np.concatenate(heard_at)].mean())) if heard_at else 0.0
            times.append(Word(word["word"], float(first[own[0]]) * frame, float(after[own[-1]]) * frame, sure))
        spread(times, clip.activity, clip.seconds)
        worse = (float(free.sum()) - float(said.sum())) / len(labels)
        return Aligned(times, heard=heard, worse=worse, reason="mismatch" if worse > MISMATCH else None)


def column(path: Path, labels: Sequence[int]) -> np.ndarray:
    """The column of the emissions that the path reads at each frame, int64 [T]."""
    columns = np.append(np.asarray(labels, np.int64), 0)
    index = np.minimum(path.states // 2, len(labels))
    return np.where(path.states % 2 == 1, columns[index], 0)


def spelling(acoustic: Acoustic, text: str, words: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    """The classes that spell a text, and for each the word that it belongs to (-1 between words). Every word has at
    least one, a wildcard when the model can write none of its characters."""
    labels: list[int] = []
    owner: list[int] = []
    written = acoustic.spell(text)
    at = 0
    for i, word in enumerate(words):
        start, end = word["span"]
        while at < len(written) and written[at][1] < start:
            if i:  # what is written before the first word is not needed
                labels.append(written[at][0])
                owner.append(-1)
            at += 1
        had = len(labels)
        while at < len(written) and written[at][1] < end:
            labels.append(written[at][0])
            owner.append(i)
            at += 1
        if len(labels) == had:
            labels.append(WILDCARD)
            owner.append(i)
    # A dash alone between two words: only what separates words is said there, if anything is.
    kept = [k for k in range(len(labels)) if owner[k] >= 0 or not (k and owner[k - 1] < 0)]
    return [labels[k] for k in kept], [owner[k] for k in kept]


@dataclass(frozen=True)
class Alphabet:
    """Characters with their classes."""

    classes: Mapping[str, int]

    def spell(self, text: str) -> list[tuple[int, int]]:
        """See `Acoustic.spell`. A character that is missing is tried in the other case and without accents; what is
        neither letter nor digit is left out, and the rest gets wildcards."""
        found = []
        for i, c in enumerate(text):
            c = " " if c.isspace() else "'" if c in "’ʼ" else c
            for way in (c, c.lower(), c.upper(), plain(c).lower(), plain(c).upper()):
                if way and all(w in self.classes for w in way):
                    found += [(self.classes[w], i) for w in way]
                    break
            else:
                if c.isalnum():
                    found.append((WILDCARD, i))
        return found


def plain(character: str) -> str:
    """Without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))


class SpeechLLMCTC:
    """The CTC head of a speech LLM."""

    blank = 0

    def __init__(self, bundle: Bundle, name: str):
        self.model: Any = bundle.model
        self.processor: Any = bundle.processor
        if self.processor.ctc is None:
            raise ConfigError(
                f"{name} has no CTC head, which the engine ctc reads: train it with `model.ctc: {{units: characters}}` "
                "or take another --engine."
            )
        self.rate, self.longest = self.processor.sample_rate, self.processor.max_seconds
        self.hop = round(self.rate / self.processor.shape.frame_rate)
        self.device = next(self.model.parameters()).device
        self._alphabet = Alphabet({c: i + 1 for i, c in enumerate(self.processor.ctc.characters)})
        self.decode = self.processor.ctc.decode
        self.spell = self._alphabet.spell

    def log_probs(self, clips: Sequence[np.ndarray]) -> list[Tensor]:
        features, lengths = self.processor.features([Example(str(i), clip) for i, clip in enumerate(clips)])
        hidden, frames = self.model.frames(features.to(self.device), lengths.to(self.device))
        return [row[:n] for row, n in zip(self.model.ctc_log_probs(hidden), frames.tolist())]


class TransformersCTC:
    """A CTC model of transformers (wav2vec 2.0, HuBERT, WavLM, Parakeet ...) with its tokenizer, from its folder.

    Clips are heard one at a time: many of these models let padding change what they hear.
    """

    longest: float | None = None

    def __init__(self, folder: File, device: torch.device):
        from transformers import AutoFeatureExtractor, AutoModelForCTC, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        try:
            self.extractor = AutoFeatureExtractor.from_pretrained(folder)
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            self.model = (
                AutoModelForCTC.from_pretrained(folder, dtype=torch.float32, use_safetensors=True).to(device).eval()
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ConfigError(f"{folder} is not a CTC model that transformers can load: {error}") from error
        self.device, self.rate = device, self.extractor.sampling_rate
        self.blank = int(self.model.config.pad_token_id)
        vocabulary = self.tokenizer.get_vocab()
        single = {t: i for t, i in vocabulary.items() if len(t) == 1 and i not in self.tokenizer.all_special_ids}
        self._pieces = len(single) < len(vocabulary) // 2
        mark = getattr(self.tokenizer, "word_delimiter_token", None)  # tokenizers of characters have one
        if mark in vocabulary:  # a special token in transformers' eyes
            single.pop(mark, None)
            single[" "] = vocabulary[mark]
        self._alphabet = Alphabet(single)
        # How many samples a frame stands for: convolutions may lose a frame at the ends.
        probe = 5 * self.rate
        frames = len(self.log_probs([np.zeros(probe, np.float32)])[0])
        step = self.rate // 200
        self.hop = round(probe / frames / step) * step

    def log_probs(self, clips: Sequence[np.ndarray]) -> list[Tensor]:
        found = []
        for clip in clips:
            if len(clip) < self.rate // 10:  # convolutions need something to see
                clip = np.pad(clip, (0, self.rate // 10 - len(clip)))
            inputs = self.extractor(clip, sampling_rate=self.rate, return_tensors="pt")
            with torch.no_grad():
                logits = self.model(**{k: v.to(self.device) for k, v in inputs.items()}).logits
            found.append(logits[0].float().log_softmax(-1))
        return found

    def spell(self, text: str) -> list[tuple[int, int]]:
        if not self._pieces:
            return self._alphabet.spell(text)
        made = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        found = []
        for token, (start, end) in zip(made["input_ids"], made["offset_mapping"]):
            while start < end - 1 and text[start].isspace():  # a piece may begin with the space before its word
                start += 1
            found.append((WILDCARD if token == self.tokenizer.unk_token_id else token, start))
        return found

    def decode(self, classes: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(classes))).strip()
