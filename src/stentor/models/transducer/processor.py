"""Examples to batches for transducers. Holds no torch module, so that it can be sent to loader workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.data.batch import Batch, Example, num_samples
from stentor.data.trained_speech import TrainedSpeech
from stentor.losses.base import WILDCARD
from stentor.models.collate import Contents, usable_batch
from stentor.models.encoders.geometry import SAMPLE_RATE, Geometry
from stentor.models.encoders.inputs import EncoderInputs
from stentor.models.pretrained.weights import read_json, write_json
from stentor.text.normalize import is_spoken

FILE = "preprocessor_config.json"
UNKNOWN = -100.0
"""Target that the losses leave out."""


class TransducerProcessor(EncoderInputs):
    """Features and targets of a transducer whose tokenizer was made from the training transcripts."""

    eos_id = 0
    """Blank: texts have no end token."""
    term = "rnnt"
    """The loss term of the targets."""
    times = False
    """Whether the model has a head for word times."""

    def __init__(self, tokenizer: Any, shape: Geometry, ctc: str | list[str] | None = None):
        super().__init__(tokenizer, shape, ctc)
        self.trained_speech: TrainedSpeech = TrainedSpeech()

    def max_new_tokens(self, seconds: float) -> int:
        """Four tokens a frame at most."""
        return 4 * self.frames(round(seconds * SAMPLE_RATE))

    def unknown_language(self, language: str | None) -> str | None:
        """Return the error for a language that the model needs and does not know, None if there is none."""
        return None

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """`features` and `lengths` (see `features`); with `labels` also `targets` [B, U], right-padded, and
        `target_lengths` [B], and where there is a CTC head `ctc_rows`, `ctc_targets` and `ctc_target_lengths`,
        with a times head `word_times`.
        """
        return usable_batch(self, examples, labels, self._contents)

    def drop_reason(self, example: Example, training: bool) -> tuple[str, str] | None:
        if sentence := self.unknown_language(example.language):
            return "unknown_language", f"{example.id}: {sentence}"
        unknown = self.unknown_letters(example.text or "") if training else ""
        if unknown:
            return "not_in_alphabet", f"{example.id}: the model cannot write {unknown}."
        return super().drop_reason(example, training)

    def _contents(self, examples: Sequence[Example], labels: bool) -> Contents:
        features, lengths = self.features(examples)
        inputs, counts = {"features": features, "lengths": lengths, **self.chunks(examples, labels)}, {}
        if labels:
            targets = [torch.tensor(self.ids(e.text or ""), dtype=torch.long) for e in examples]
            inputs["targets"] = pad_sequence(targets, batch_first=True)
            inputs["target_lengths"] = torch.tensor(list(map(len, targets)))
            counts[self.term] = sum(map(len, targets))
            if self.ctc is not None:
                counts["ctc"] = self.ctc_targets(examples, lengths, inputs)
            if self.times:
                inputs["word_times"] = self._word_times(examples, lengths)
                counts["times"] = int((inputs["word_times"] != UNKNOWN).sum())
        frames = [self.frames(num_samples(e)) for e in examples]
        return inputs, counts, sum(frames), max(frames) * len(frames)

    def _word_times(self, examples: Sequence[Example], lengths: Tensor) -> Tensor:
        """Frames [B, T, 2] from the beginning of the word at the middle of each frame and to its end, from
        `Example.extra["times"]`; -100 where no word is known."""
        frames = self.shape.frames(lengths)
        targets = torch.full((len(examples), int(frames.max()), 2), UNKNOWN)
        middle = torch.arange(targets.shape[1]) + 0.5
        for row, example in zip(targets, examples):
            for word in example.extra.get("times", ()):
                start, end = (word[key] * self.shape.frame_rate for key in ("start", "end"))
                inside = (middle >= start) & (middle < end)
                row[inside] = torch.stack([middle[inside] - start, end - middle[inside]], 1)
        return targets

    def spell(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens of a known text, and for each the characters [start, end) of the text that it writes. The text is
        written as it is, in small letters or without punctuation, whichever the tokenizer can write most of. What is
        spoken and cannot be written is `WILDCARD`, without the space after a word of it; the rest is left out."""
        backend, unknown = self.tokenizer.backend_tokenizer, self.tokenizer.unk_token_id
        plain = [(c, i) for i, c in enumerate(text)]
        small = [(letter, i) for c, i in plain for letter in c.lower()]
        bare = [(c if is_spoken(c) or c == "'" else " ", i) for c, i in small]
        encodings = []
        for pairs in (plain, small, bare):
            single = [pair for before, pair in zip([(" ", 0), *pairs], pairs) if not (before[0] + pair[0]).isspace()]
            places = [i for _, i in single]
            encoding = backend.encode("".join(c for c, _ in single).rstrip(), add_special_tokens=False)
            spans = [(places[a], places[b - 1] + 1) if a < b else (0, 0) for a, b in encoding.offsets]
            encodings.append((encoding.ids, spans))
        ids, spans = min(encodings, key=lambda encoding: encoding[0].count(unknown))
        spelled: list[tuple[int, tuple[int, int]]] = []
        for token, (start, end) in zip(ids, spans):
            last, (first, after) = spelled[-1] if spelled else (0, (0, 0))
            if token != unknown:
                # No two spaces around a word that is a wildcard: the model has never seen them.
                if not (last == WILDCARD and text[start:end].isspace() and (not first or text[first - 1].isspace())):
                    spelled.append((token, (start, end)))
            elif last == WILDCARD and after == start:
                spelled[-1] = WILDCARD, (first, end)
            elif is_spoken(text[start:end]):
                spelled.append((WILDCARD, (start, end)))
        return [token for token, _ in spelled], [span for _, span in spelled]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and preprocessor_config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        facts = {
            "processor_class": type(self).__name__,
            "sampling_rate": SAMPLE_RATE,
            "encoder": asdict(self.shape),
            "ctc_alphabet": self.ctc.units if self.ctc else None,
            "trained_speech": asdict(self.trained_speech),
        }
        write_json(folder / FILE, facts)

    @classmethod
    def load(cls, folder: Path) -> TransducerProcessor:
        """The processor of an export folder."""
        from transformers import PreTrainedTokenizerFast

        facts: dict[str, Any] = read_json(folder / FILE)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False)
        processor = cls(tokenizer, Geometry.of_export(facts["encoder"]), facts["ctc_alphabet"])
        processor.trained_speech = TrainedSpeech.of_export(facts)
        return processor
