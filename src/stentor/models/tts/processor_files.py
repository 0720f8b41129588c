"""Processor files: a tokenizer with a chat template, the settings of transformers' processor, and where its codec is.

In the place of the processor itself, of models whose codec transformers hides without torchaudio.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stentor.models.codecs.base import INSIDE, AudioCodec, open_codec

SETTINGS = "processor_config.json"
CODEC, WHERE = "audio_tokenizer", "audio_tokenizer_name_or_path"


class ProcessorFiles:
    """`tokenizer`, and the `settings` of processor_config.json."""

    def __init__(self, name: str, **options: Any):
        """Reads the files of a folder or Hub id. Raises OSError or ValueError when they cannot be had."""
        from transformers import AutoTokenizer
        from transformers.utils import cached_file

        self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
        if not self.tokenizer.chat_template:
            raise ValueError(f"{name} has no chat template")
        path = cached_file(name, SETTINGS, **options)
        self.settings = json.loads(Path(str(path)).read_text(encoding="utf-8"))
        # An export has its codec beside it, whatever the settings name.
        self.codec_name = str(Path(name) / INSIDE) if (Path(name) / INSIDE).is_dir() else self.settings[CODEC][WHERE]

    def codec(self) -> AudioCodec:
        """The codec that the settings name."""
        return open_codec(self.codec_name)

    def render(self, conversation: list[dict[str, Any]]) -> str:
        """The text of a conversation, as the chat template writes it, up to where audio begins."""
        return str(self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))

    def save_pretrained(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
        (folder / SETTINGS).write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")


def message(role: str, *content: str) -> dict[str, Any]:
    """A turn of a conversation; each of `content` is a text, or "" for audio."""
    return {"role": role, "content": [{"type": "text", "text": c} if c else {"type": "audio"} for c in content]}
