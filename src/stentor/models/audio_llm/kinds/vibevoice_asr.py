"""VibeVoice-ASR: two codec encoders at 24 kHz, projector, Qwen2 (Peng et al. 2026, arXiv 2601.18184).

The prompt says how long the audio is. The model answers in JSON, which it begins with the line of its own turn:

    <|im_start|>assistant\\n[{"Start":0,"End":1.5,"Speaker":0,"Content":"Hello."}]<|im_end|>\\n<|endoftext|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example, num_samples
from stentor.models.audio_llm.turns import TIME, TurnsProcessor, read_turns
from stentor.models.collate import mask_audio

if TYPE_CHECKING:
    from torch import Tensor

TURN = re.compile(
    rf'\{{\s*(?:"Start"\s*:\s*"?(?P<start>{TIME})"?\s*,\s*)?(?:"End"\s*:\s*"?(?P<end>{TIME})"?\s*,\s*)?'
    r'(?:"Speaker"\s*:\s*"?(?P<speaker>[^",]+)"?\s*,\s*)?"Content"\s*:\s*"(?P<text>(?:[^"\\]|\\.)*)'
)
"""A turn, of which the end may be missing."""
BEGIN = "<|im_start|>assistant\n"


class VibeVoiceAsr(TurnsProcessor):
    """The codec encoders are never trained, as in transformers, and give their means: no noise is drawn."""

    model_types = ("vibevoice_asr",)
    architecture = "VibeVoiceAsrForConditionalGeneration"
    processor = "VibeVoiceAsrProcessor"
    tokenizer_holds = "the processor of a VibeVoice-ASR model, such as microsoft/VibeVoice-ASR-HF"
    hints = frozenset({"context"})
    sample_rate = 24000
    longest_seconds = 3600.0
    fixed = ("acoustic_tokenizer_encoder.*", "semantic_tokenizer_encoder.*")
    audio_options = {"sample": False}

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.hop = config.acoustic_tokenizer_encoder_config.hop_length
        end = self._all_ids("<|im_end|>\n")
        self.ending = [self.eos_id] if end[0] == self.eos_id else [*end, self.eos_id]
        self.opening = [] if self.request(None, None, False).endswith(BEGIN) else self._all_ids(BEGIN)

    def prompt_of(self, example: Example, labels: bool) -> list[int]:
        seconds = num_samples(example) / self.sample_rate
        request = self.request(None, example.context, False)
        before, after = self.split(request.replace(self.hf.audio_duration_token, f"{seconds:.2f}"))
        return [*before, *self.span(num_samples(example)), *after]

    def answer(self, text: list[int], language: str | None) -> list[int]:
        return [*self.opening, *text, *self.ending]

    def turn_ids(self, turns: Sequence[dict[str, Any]]) -> list[int]:
        parts = [
            f'{{"Start":{_seconds(t["start"])},"End":{_seconds(t["end"])},"Speaker":{t["speaker"]},'
            f'"Content":{json.dumps(t["text"], ensure_ascii=False)}}}'
            for t in turns
        ]
        return self.ids(f"[{','.join(parts)}]")

    def parse(self, text: str) -> tuple[list[dict[str, Any]], bool]:
        turns = read_turns(TURN, text)
        try:
            whole = json.loads(text[max(text.find("["), 0) :])
        except ValueError:
            return turns, False
        return turns, isinstance(whole, list) and len(whole) == len(turns)

    def words_in(self, text: str) -> str:
        try:
            return str(json.loads(f'"{text}"', strict=False))
        except ValueError:  # cut off within an escape
            return text.rpartition("\\")[0]

    def positions(self, samples: int) -> int:
        return -(-samples // self.hop)

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        clips = [mask_audio(e.audio, e) for e in examples if e.audio is not None]
        features = self.hf.feature_extractor(
            clips, sampling_rate=self.sample_rate, return_tensors="pt", pad_to_multiple_of=self.hop
        )
        return dict(features)


def _seconds(time: float) -> str:
    return f"{time:.2f}".rstrip("0").rstrip(".")
