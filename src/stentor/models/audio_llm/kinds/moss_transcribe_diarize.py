"""MOSS-Transcribe-Diarize: Whisper encoder, four frames side by side, Qwen3 (arXiv 2601.01554).

Between the positions of the audio are time stamps, one every two seconds. An answer is

    [0.00][S01]Hello.[1.50][1.80][S02]Hi.[2.20]<|im_end|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example
from stentor.models.audio_llm.turns import TIME, TurnsProcessor, read_turns
from stentor.models.collate import mask_features
from stentor.models.text.control_tokens import as_text

if TYPE_CHECKING:
    from torch import Tensor

TURN = re.compile(
    rf"\[(?P<start>{TIME})\]\s*\[S(?P<speaker>\d+)\](?P<text>.*?)(?:(?=\[{TIME}\]\s*\[S\d)|\[(?P<end>{TIME})\]|\Z)",
    re.DOTALL,
)


class MossTranscribeDiarize(TurnsProcessor):
    """Features are those of the processor for a clip alone, in windows of 30 s."""

    model_types = ("moss_transcribe_diarize",)
    architecture = "MossTranscribeDiarizeForConditionalGeneration"
    processor = "MossTranscribeDiarizeProcessor"
    tokenizer_holds = "the processor of a MOSS-Transcribe-Diarize model"
    hints = frozenset({"context"})
    fixed = ("audio_tower.embed_positions.weight",)
    longest_seconds = 5400.0

    def turn_ids(self, turns: Sequence[dict[str, Any]]) -> list[int]:
        texts = [as_text(self.hf.tokenizer, turn["text"]) for turn in turns]
        parts = (f"[{t['start']:.2f}][S{t['speaker'] + 1:02d}]{x}[{t['end']:.2f}]" for t, x in zip(turns, texts))
        return self._all_ids("".join(parts))

    def parse(self, text: str) -> tuple[list[dict[str, Any]], bool]:
        turns = read_turns(TURN, text)
        return turns, not TURN.sub("", text).strip() and all(turn["end"] is not None for turn in turns)

    def positions(self, samples: int) -> int:
        window, merge = self.hf.feature_extractor.n_samples, self.hf.audio_merge_size
        parts = [min(window, samples - at) for at in range(0, max(samples, 1), window)]
        frames = (-(-max(part, 1) // self.hf.feature_extractor.hop_length) for part in parts)
        return sum(-(-((count - 1) // 2 + 1) // merge) for count in frames)

    def span(self, samples: int) -> list[int]:
        return self._all_ids(self.hf.replace_audio_token({"num_audio_tokens": [self.positions(samples)]}, 0))

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        import torch

        parts = [
            self.hf.feature_extractor([e.audio], sampling_rate=self.sample_rate, return_tensors="pt") for e in examples
        ]
        for example, part in zip(examples, parts, strict=True):
            frames = part["input_features_mask"].sum(1)
            for row, length in zip(part["input_features"], frames):
                mask_features(row[None], length[None], [example])
        names = ("input_features", "input_features_mask")
        masks = torch.ones(len(examples), 1)  # of the samples: transformers asks for it and does not use it
        return {name: torch.cat([p[name] for p in parts]) for name in names} | {"padding_mask": masks}
