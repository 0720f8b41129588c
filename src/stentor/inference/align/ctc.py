"""CTC alignment: word times from the best path of a CTC model that spells the text (see `models.ctc.viterbi`).

Any CTC model of transformers, or the CTC head of a speech LLM of ours. Characters that the model cannot write are
spelled with a wildcard, which is any sound. Emissions of long audio are made in windows that overlap, and only of the
classes that the text has; the path is found over all of it at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stentor.data.batch import Example
from stentor.data.word_units import units
from stentor.errors import ConfigError
from stentor.inference.align.base import Aligned, Clip, Word
from stentor.inference.align.boundaries import spread
from stentor.losses.base import WILDCARD
from stentor.models.base import Bundle
from stentor.models.decoding.viterbi import Path, viterbi, with_wildcard
from stentor.models.text.spelling import plain

WINDOW, CONTEXT = 24.0, 2.0
"""Seconds of each window of long audio whose emissions are used, and of context on either side."""
PENALTY = 1.0
"""Penalty of a wildcard at a frame without sound, in nats."""
MISMATCH = 2.0
"""Text whose path is so much worse than the best path without a text, in nats per label, is not what was said: of 149
utterances with a model of 64 % WER 99 % had at most 0.7, and with the text of another 99 % had more than this."""


class Acoustic(Protocol):
    """A CTC model."""

    rate: int
    """Samples per second of its audio."""
    hop: int
    """Samples between frames."""
    longest: float | None
    """Most seconds of audio at a time. None: any."""
    blank: int
    device: torch.device

    def log_probs(self, clips: Sequence[np.ndarray]) -> list[Tensor]:
        """Log-probabilities [T, C] of each clip, float32."""

    def spell(self, text: str) -> list[tuple[int, int]]:
        """(class, position in the text) of everything that is written, in order; `WILDCARD` for what has no class."""

    def decode(self, classes: Sequence[int]) -> str:
        """Text of the best classes, one per frame."""


@dataclass
class _Item:
    clip: Clip
    emissions: Tensor  # log-probabilities [T, C] of the classes that the text needs: blank first, wildcard last
    labels: list[int]  # the text as columns of the emissions
    owners: list[int]  # the word that each label belongs to; -1 between words
    best: np.ndarray  # best log-probability of each frame among all classes [T]
    hypothesis: str | None


class CTCAligner:
    """Word times of known texts from a CTC model."""

    def __init__(self, acoustic: Acoustic):
        self.acoustic = acoustic
        self.rate = acoustic.rate

    @torch.no_grad()
    def align(self, clips: Sequence[Clip], transcribe: bool = False) -> list[Aligned]:
        """Word times of each clip; with `transcribe` also the model's own transcript."""
        items = [self._item(clip, parts, transcribe) for clip, parts in zip(clips, self._log_probs(clips))]
        paths = viterbi([item.emissions for item in items], [item.labels for item in items])
        return [self._aligned(item, path) for item, path in zip(items, paths)]

    def _log_probs(self, clips: Sequence[Clip]) -> list[Iterable[Tensor]]:
        """Log-probabilities [T, all classes] of each clip: short clips as one batch, long ones lazily in windows."""
        longest = min(self.acoustic.longest or 30.0, 30.0) * self.rate
        short = [clip for clip in clips if clip.samples <= longest]
        batch = iter(self.acoustic.log_probs([clip.recording.read(0, clip.samples) for clip in short]) if short else [])
        return [[next(batch)] if clip.samples <= longest else self._windows(clip) for clip in clips]

    def _windows(self, clip: Clip) -> Iterator[Tensor]:
        """Log-probabilities of a long clip, a window at a time, each computed with some audio before and after."""
        hop = self.acoustic.hop
        longest = min(self.acoustic.longest or 30.0, WINDOW + 2 * CONTEXT)
        context = round(CONTEXT * self.rate / hop)  # frames
        size = int(longest * self.rate / hop) - 2 * context
        total = max(1, clip.samples // hop)
        for begin in range(0, total, size):
            first = max(0, begin - context)
            audio = clip.recording.read(first * hop, min(clip.samples, (begin + size + context) * hop))
            (log_probs,) = self.acoustic.log_probs([audio])
            yield log_probs[begin - first : None if begin + size >= total else begin - first + size]

    def _item(self, clip: Clip, log_probs: Iterable[Tensor], transcribe: bool) -> _Item:
        labels, owners = spelling(self.acoustic, clip.text, units(clip.text, clip.language))
        classes = sorted(set(labels) - {WILDCARD})
        columns = [self.acoustic.blank, *classes]
        column_of = {c: i for i, c in enumerate(classes, 1)} | {WILDCARD: WILDCARD}
        emissions, best, top_classes = [], [], []
        for part in log_probs:
            top = part.max(-1)
            best.append(top.values.cpu().numpy())
            top_classes.append(top.indices.cpu().numpy())
            if WILDCARD in labels:
                part = with_wildcard(part, self.acoustic.blank, PENALTY)
                emissions.append(part[:, [*columns, part.shape[1] - 1]])
            else:
                emissions.append(part[:, columns])
        text = self.acoustic.decode(np.concatenate(top_classes).tolist()) if transcribe else None
        return _Item(clip, torch.cat(emissions), [column_of[c] for c in labels], owners, np.concatenate(best), text)

    def _aligned(self, item: _Item, path: Path | None) -> Aligned:
        clip, labels = item.clip, item.labels
        words = units(clip.text, clip.language)
        if not words:
            return Aligned([], item.hypothesis, reason="no_words")
        if path is None:
            return Aligned([], item.hypothesis, reason="too_long_text")
        frame = self.acoustic.hop / self.rate
        first, after = path.labels(len(labels))
        log_probs = item.emissions.cpu().numpy()[np.arange(len(path.states)), column(path, labels)]
        owners = np.array(item.owners)
        times: list[Word] = []
        for i, word in enumerate(words):
            own_labels = np.flatnonzero(owners == i)
            frames = [np.arange(first[k], after[k]) for k in own_labels if labels[k] != WILDCARD]
            confidence = float(np.exp(log_probs[np.concatenate(frames)].mean())) if frames else 0.0
            start, end = float(first[own_labels[0]]) * frame, float(after[own_labels[-1]]) * frame
            times.append(Word(word["word"], start, end, confidence, not frames))
        spread(times, clip.activity, clip.seconds)
        cost = (float(item.best.sum()) - float(log_probs.sum())) / len(labels)
        return Aligned(times, item.hypothesis, cost, "mismatch" if cost > MISMATCH else None)


def column(path: Path, labels: Sequence[int]) -> np.ndarray:
    """The column of the emissions that the path reads at each frame, int64 [T]."""
    columns = np.append(np.asarray(labels, np.int64), 0)
    index = np.minimum(path.states // 2, len(labels))
    return np.where(path.states % 2 == 1, columns[index], 0)


def spelling(acoustic: Acoustic, text: str, words: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    """The classes that spell a text, and for each the word that it belongs to (-1 between words). Every word has at
    least one, a wildcard when the model can write none of its characters."""
    pairs: list[tuple[int, int]] = []  # class and word
    written = acoustic.spell(text)
    at = 0
    for i, word in enumerate(words):
        start, end = word["span"]
        while at < len(written) and written[at][1] < start:
            if i:  # what is written before the first word is not needed
                pairs.append((written[at][0], -1))
            at += 1
        before = at
        while at < len(written) and written[at][1] < end:
            if pairs[-1:] != [(WILDCARD, i)] or written[at][0] != WILDCARD:  # one for a row of them
                pairs.append((written[at][0], i))
            at += 1
        if at == before:
            pairs.append((WILDCARD, i))
    # A dash alone between two words: only what separates words is said there, if anything is.
    pairs = [pair for k, pair in enumerate(pairs) if pair[1] >= 0 or not (k and pairs[k - 1][1] < 0)]
    return [label for label, _ in pairs], [word for _, word in pairs]


@dataclass(frozen=True)
class Alphabet:
    """Characters with their classes."""

    classes: Mapping[str, int]

    def spell(self, text: str) -> list[tuple[int, int]]:
        """See `Acoustic.spell`. A character that is missing is tried in the other case and without accents; what is
        neither letter nor digit is left out, and the rest gets wildcards."""
        spelled = []
        for i, c in enumerate(text):
            c = " " if c.isspace() else "'" if c in "’ʼ" else c
            for way in (c, c.lower(), c.upper(), plain(c).lower(), plain(c).upper()):
                if way and all(w in self.classes for w in way):
                    spelled += [(self.classes[w], i) for w in way]
                    break
            else:
                if c.isalnum():
                    spelled.append((WILDCARD, i))
        return spelled


class SpeechLLMCTC:
    """The CTC head of a speech LLM."""

    blank = 0

    def __init__(self, bundle: Bundle, name: str):
        model: Any = bundle.model
        processor: Any = bundle.processor
        if processor.ctc is None:
            raise ConfigError(
                f"{name} has no CTC head, which the engine ctc reads: train it with `model.ctc: {{units: characters}}` "
                "or take another --engine."
            )
        self.model, self.processor = model, processor
        self.rate, self.longest = processor.sample_rate, processor.max_seconds
        self.hop = round(self.rate / processor.shape.frame_rate)
        self.device = next(model.parameters()).device
        self._alphabet = Alphabet({c: i + 1 for i, c in enumerate(processor.ctc.units)})
        self.decode = processor.ctc.decode
        self.spell = self._alphabet.spell

    def log_probs(self, clips: Sequence[np.ndarray]) -> list[Tensor]:
        features, lengths = self.processor.features([Example(str(i), clip) for i, clip in enumerate(clips)])
        hidden, frames = self.model.frames(features.to(self.device), lengths.to(self.device))
        return [row[:n] for row, n in zip(self.model.ctc_log_probs(hidden), frames.tolist())]


class TransformersCTC:
    """A CTC model of transformers (wav2vec 2.0, HuBERT, WavLM, Parakeet ...) with its tokenizer, from its folder.

    Clips go one at a time: padding changes the output of many of these models.
    """

    longest: float | None = None

    def __init__(self, folder: File, device: torch.device):
        from transformers import AutoFeatureExtractor, AutoModelForCTC, AutoTokenizer
        from transformers import Wav2Vec2CTCTokenizer as Characters
        from transformers import Wav2Vec2PhonemeCTCTokenizer as Phonemes
        from transformers.utils import logging

        logging.disable_progress_bar()
        try:
            self.extractor = AutoFeatureExtractor.from_pretrained(folder, trust_remote_code=False)
            self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model: Any = AutoModelForCTC.from_pretrained(
                folder, trust_remote_code=False, dtype=torch.float32, use_safetensors=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ConfigError(f"{folder} is not a CTC model that transformers can load: {error}") from error
        self.model = model.to(device).eval()
        self.device, self.rate = device, self.extractor.sampling_rate
        self.blank = int(self.model.config.pad_token_id)
        vocabulary = self.tokenizer.get_vocab()
        single = {t: i for t, i in vocabulary.items() if len(t) == 1 and i not in self.tokenizer.all_special_ids}
        self._pieces = len(single) < len(vocabulary) // 2
        mark = self.tokenizer.word_delimiter_token if isinstance(self.tokenizer, (Characters, Phonemes)) else None
        if mark is not None and mark in vocabulary:  # a special token in transformers' eyes
            single.pop(mark, None)
            single[" "] = vocabulary[mark]
        self._alphabet = Alphabet(single)
        # How many samples a frame stands for: convolutions may lose a frame at the ends.
        probe = 5 * self.rate
        frames = len(self.log_probs([np.zeros(probe, np.float32)])[0])
        step = self.rate // 200
        self.hop = round(probe / frames / step) * step

    def log_probs(self, clips: Sequence[np.ndarray]) -> list[Tensor]:
        log_probs = []
        for clip in clips:
            if len(clip) < self.rate // 10:  # convolutions need something to see
                clip = np.pad(clip, (0, self.rate // 10 - len(clip)))
            inputs = self.extractor(clip, sampling_rate=self.rate, return_tensors="pt")
            with torch.no_grad():
                logits = self.model(**{k: v.to(self.device) for k, v in inputs.items()}).logits
            log_probs.append(logits[0].float().log_softmax(-1))
        return log_probs

    def spell(self, text: str) -> list[tuple[int, int]]:
        if not self._pieces:
            return self._alphabet.spell(text)
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spelled = []
        for token, (start, end) in zip(encoding["input_ids"], encoding["offset_mapping"]):
            while start < end - 1 and text[start].isspace():  # a piece may begin with the space before its word
                start += 1
            spelled.append((WILDCARD if token == self.tokenizer.unk_token_id else token, start))
        return spelled

    def decode(self, classes: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(classes))).strip()
