"""Nemotron 3.5 Transcribe: a recogniser's and a diarizer's encoder side by side, projector, Nemotron-H (NVIDIA 2026).

Asked for the transcript alone it answers with the text; asked for speakers, with a special token before each turn:

    <spk:0> Hello. <spk:1> Hi.<|im_end|>

It writes no times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example, num_samples
from stentor.models.audio_llm.processor import PromptParts
from stentor.models.audio_llm.turns import TurnsProcessor
from stentor.models.collate import SHORTEST, mask_features, pad_shortest

if TYPE_CHECKING:
    from torch import Tensor

TAG = re.compile(r"(<spk:\d+>)")
# We did not find the words in which the released model is asked for speakers: these are ours.
PLAIN, TAGGED = "Output: transcript only.", "Output: transcript with speaker tags."


class Nemotron35Transcribe(TurnsProcessor):
    """Features are those of the processor for a clip alone. The head for word times, which needs torchaudio and a
    tokenizer of its own, and the diarizer's encoder are never trained."""

    model_types = ("nemo_speechlm",)
    architecture = "Nemotron3_5TranscribeForConditionalGeneration"
    processor = "Nemotron3_5TranscribeProcessor"
    tokenizer_holds = "the processor of a Nemotron 3.5 Transcribe model"
    longest_seconds = 3600.0
    heads = ("lm_head", "word_timestamp_head")
    names = (("word_timestamp_head.", "word_timestamp_head."), *TurnsProcessor.names)
    fixed = ("audio_tower.diarization_model.*", "word_timestamp_*")

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.factor = self.hf.subsampling_factor
        text = self.hf.default_transcription_prompt
        self.frames = {asked: self.split(self._chat(text.replace(PLAIN, asked))) for asked in (PLAIN, TAGGED)}
        known = self.hf.tokenizer.get_vocab()
        self.tags = [known[tag] for i in range(100) if (tag := f"<spk:{i}>") in known]

    def _chat(self, text: str) -> str:
        content = [{"type": "text", "text": text}, {"type": "audio", "audio": ""}]
        options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
        return str(self.hf.apply_chat_template([{"role": "user", "content": content}], **options))

    def _prompt_parts(self, language: str | None, context: str | None, translate: bool) -> PromptParts:
        return self.frames[PLAIN]

    def prompt_of(self, example: Example, labels: bool) -> list[int]:
        before, after = self.frames[TAGGED if "turns" in example.extra else PLAIN]
        return [*before, *self.span(num_samples(example)), *after]

    def text_ids(self, example: Example) -> list[int]:
        return super().text_ids(example) if "turns" in example.extra else self.ids(example.text or "")

    def turn_ids(self, turns: Sequence[dict[str, Any]]) -> list[int]:
        ids: list[int] = []
        for i, turn in enumerate(turns):
            ids += self.ids(" ") if i else []
            ids += [self.tags[min(turn["speaker"], len(self.tags) - 1)], *self.ids(f" {turn['text']}")]
        return ids

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        speakers = max((turn["speaker"] for turn in example.extra.get("turns", ())), default=0) + 1
        if labels and speakers > len(self.tags):
            return "too_many_speakers", (
                f"{example.id}: {speakers} speakers; the model has tags for {len(self.tags)}. Cut it into parts with "
                "fewer speakers, or leave it out."
            )
        return super().refusal(example, labels)

    def answer_text(self, ids: Sequence[int]) -> str:
        return str(self.hf.tokenizer.decode(list(ids), skip_special_tokens=False))

    def parse(self, text: str) -> tuple[list[dict[str, Any]], bool]:
        turns, speaker, at = [], None, 0
        for part in TAG.split(text):
            if TAG.fullmatch(part):
                speaker = part
            elif part.strip():
                turns.append({"speaker": speaker, "start": None, "end": None, "span": (at, at + len(part))})
            at += len(part)
        return turns, True

    def positions(self, samples: int) -> int:
        return -(-(max(samples, SHORTEST) // self.hf.feature_extractor.hop_length) // self.factor)

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        from torch.nn.functional import pad

        clips = [pad_shortest(e.audio) for e in examples]
        features = self.hf.feature_extractor(clips, sampling_rate=self.sample_rate, return_tensors="pt")
        mask = features["attention_mask"]
        mask_features(features["input_features"].transpose(1, 2), mask.sum(1), examples)
        more = -mask.shape[1] % self.factor
        return {
            "input_features": pad(features["input_features"], (0, 0, 0, more)),
            "input_features_mask": pad(mask, (0, more)),
        }
