"""Examples to batches for transformers' transducers, with the features and the tokenizer of their own processors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor.data.batch import Batch, Example
from stentor.errors import DataError
from stentor.models.collate import encoder_inputs
from stentor.models.encoders.geometry import Geometry
from stentor.models.text.spelling import Pieces, written
from stentor.models.transducer.config import TransducerKind
from stentor.models.transducer.processor import TransducerProcessor
from stentor.text.languages import among, find

BLANK = "<blank>"
AUTO = "auto"
"""Name of an unknown language in language prompts."""


class PretrainedProcessor(TransducerProcessor):
    """`hf` is transformers' processor of the model: its extractor and tokenizer make what the model was trained on."""

    def __init__(self, hf: Any, shape: Geometry, kind: TransducerKind, strip: bool = False):
        super().__init__(hf.tokenizer, shape)
        self.trained_speech = None  # type: ignore[assignment]  # pretrained on clips of all kinds, as exports are read
        self.hf, self.term = hf, kind.term
        self.eos_id = int(hf.tokenizer.convert_tokens_to_ids(BLANK))  # texts have no end token
        self.spelling = Pieces(hf.tokenizer, strip)
        prompts = vars(hf).get("prompt_dictionary") or {}
        self.prompts = {name.lower(): i for name, i in prompts.items()}
        """Prompts of the languages that can be set, by code."""
        self.known_languages = tuple({row.code for row in map(find, self.prompts) if row is not None})

    def features(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Log-mel [B, mels, T] of the model's own extractor, zero at padding, with lengths [B]."""
        return encoder_inputs(self.shape, self.hf.feature_extractor, examples)

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """As `TransducerProcessor.collate`, with `prompt_ids` [B] where the model takes the language of a clip."""
        batch = super().collate(examples, packed, labels)
        if self.prompts and batch.ids:
            languages = {example.id: example.language for example in examples}
            batch.inputs["prompt_ids"] = torch.tensor([self._prompt(languages[name]) for name in batch.ids])
        return batch

    def _prompt(self, language: str | None) -> int:
        if error := self.unknown_language(language):
            raise DataError(error)
        return self.prompts[among(language or AUTO, tuple(self.prompts)) or AUTO]

    def unknown_language(self, language: str | None) -> str | None:
        """Return the error for a language that the model has no prompt for, None where it has one."""
        if not self.prompts or among(language or AUTO, tuple(self.prompts)) is not None:
            return None
        return f"The model does not know the language {language}: leave the language out to detect it."

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self.spelling.encode(text)[0]

    def unknown_letters(self, text: str) -> str:
        return self.spelling.encode(text)[1]

    def written(self, letter: str) -> str:
        return written(self.spelling, letter)

    def decode(self, ids: Sequence[int]) -> str:
        return self.spelling.decode(ids)

    def save(self, folder: Path) -> None:
        """Write the files of transformers' processor."""
        folder.mkdir(parents=True, exist_ok=True)
        self.hf.save_pretrained(folder)
