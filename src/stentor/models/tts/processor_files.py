"""Processor files of models that speak: a tokenizer with a chat template, settings, and where the codec is.

In the place of transformers' processor, of models whose codec it hides without torchaudio.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stentor.errors import ConfigError
from stentor.models.codecs.base import INSIDE, AudioCodec, open_codec
from stentor.models.pretrained.kind import ProcessorFiles


class CodecFiles(ProcessorFiles):
    """`tokenizer`, and the `settings` of processor_config.json."""

    NAMES = ("processor_config.json",)

    def __init__(self, tokenizer: Any, files: dict[str, dict[str, Any]]):
        super().__init__(tokenizer, files)
        if not self.chat_template:
            raise ValueError(f"{tokenizer.name_or_path} has no chat template")
        if not files:
            raise ValueError(f"{tokenizer.name_or_path} does not appear to have a file named {self.NAMES[0]}")
        self.settings = files[self.NAMES[0]]

    def codec(self) -> AudioCodec:
        """The codec beside an export, else that which the settings name."""
        inside = Path(self.tokenizer.name_or_path) / INSIDE
        if inside.is_dir():
            return open_codec(str(inside))
        name = self.settings.get("audio_tokenizer", {}).get("audio_tokenizer_name_or_path")
        if name is None:
            raise ConfigError(
                f"{self.tokenizer.name_or_path}: {self.NAMES[0]} names no codec: give its folder or Hub id as "
                "`model.codec: {from: ...}`."
            )
        return open_codec(name)

    def render(self, conversation: list[dict[str, Any]]) -> str:
        """The text of a conversation, as the chat template writes it, up to where audio begins."""
        return str(self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))


def message(role: str, *content: str) -> dict[str, Any]:
    """A turn of a conversation; each of `content` is a text, or "" for audio."""
    return {"role": role, "content": [{"type": "text", "text": c} if c else {"type": "audio"} for c in content]}
