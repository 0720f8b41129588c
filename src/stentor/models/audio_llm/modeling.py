"""Training and decoding over the parts of a transformers model with audio encoder, projector and language model."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from stentor.models.audio_llm.config import NAMES, Names
from stentor.models.contracts import Capabilities, GenerationOutput, Recognizer
from stentor.models.decoding.rescoring import prompted_states, text_log_probs
from stentor.models.decoding.search import LanguageModelDecoder, answer
from stentor.models.delayed.modeling import NOT_AUDIO
from stentor.models.pretrained.lora import is_adapter


def transformers_name(name: str, names: Names = NAMES) -> str:
    """transformers' name of a tensor of an `AudioLLMModel`, for the `names` of its processor."""
    own, theirs = next(pair for pair in names if name.startswith(pair[0]))
    return theirs + name.removeprefix(own)


def own_name(name: str, names: Names = NAMES) -> str:
    """The name in an `AudioLLMModel` of a tensor of transformers' model."""
    own, theirs = next((pair for pair in names if name.startswith(pair[1])), ("", ""))
    return own + name.removeprefix(theirs)


class PartNames(Protocol):
    """Settings that a model gets from its processor: ids of the tokens that frame an answer, and names of parts."""

    marker_id: int | None
    end_ids: set[int]
    audio_options: ClassVar[dict[str, Any]]
    heads: ClassVar[tuple[str, ...]]
    fixed: ClassVar[tuple[str, ...]]


class AudioLLMModel(Recognizer, nn.Module):
    """The parts of transformers' model, under the names that it has for them below `model.`: those that make audio into
    positions of the language model, then `language_model` and `lm_head`.

    A part without any trainable parameter stays in evaluation mode (no dropout), also while the rest trains.
    """

    config: Any
    language_model: Any
    lm_head: Any
    base_model_prefix = ""
    """peft asks for it where there are models of transformers inside."""

    def __init__(self, pretrained: Any, processor: PartNames):
        """`pretrained`: transformers' model, whose parts are taken over; of the `processor` the ids of the tokens that
        frame an answer and the names of what is `fixed`."""
        super().__init__()
        self.config = pretrained.config
        self.marker_id, self.end_ids = processor.marker_id, processor.end_ids
        # transformers' own way from audio to positions, over parts of the same names.
        self._audio_features = type(pretrained.model).get_audio_features
        self.audio_options = processor.audio_options
        for name, part in pretrained.model.named_children():
            if name != "language_model":
                self.add_module(name, part)
                part.register_forward_pre_hook(_like_weights, with_kwargs=True)
        self.language_model = pretrained.model.language_model
        for head in processor.heads:
            self.add_module(head, getattr(pretrained, head))
        for name, parameter in self.named_parameters():
            if any(fnmatchcase(name, glob) for glob in processor.fixed):  # loading makes them trainable
                parameter.requires_grad_(False)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(names_language=self.marker_id is not None, language_marker=self.marker_id)

    def train(self, mode: bool = True) -> AudioLLMModel:
        super().train(mode)
        for part in self.children():
            if not any(p.requires_grad for p in part.parameters()):
                part.eval()
        for module in self.modules():  # whose statistics would depend on the batch
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self

    def audio(self, **inputs: Tensor) -> Tensor:
        """Positions of the language model [N, width] from the audio inputs of the processor."""
        return self._audio_features(self, **inputs, **self.audio_options, return_dict=True).pooler_output.flatten(0, -2)

    def embed(self, input_ids: Tensor, audio_index: Tensor, **audio: Tensor) -> Tensor:
        """Input of the language model [B, L, width]: token embeddings, with the audio at its positions."""
        return self.insert(self.audio(**audio), input_ids, audio_index)

    def insert(self, audio: Tensor, input_ids: Tensor, audio_index: Tensor) -> Tensor:
        """`embed` for audio positions [N, width]."""
        # The placeholder may be beyond the vocabulary.
        words = input_ids.flatten().index_fill(0, audio_index, 0)
        embeds = self.language_model.get_input_embeddings()(words)
        embeds = embeds.index_copy(0, audio_index, audio.to(embeds.dtype))
        return embeds.unflatten(0, input_ids.shape)

    def head(self, hidden: Tensor) -> dict[str, Tensor]:
        """Output layer for [N, width], in the form that the loss takes: `hidden` and `weight`, so
        that the loss may compute logits in chunks, or `logits` where the layer carries an adapter."""
        hidden = hidden.to(self.lm_head.weight.dtype)  # parts that are not trained may be in bfloat16
        if type(self.lm_head) is not nn.Linear:
            return {"logits": self.lm_head(hidden)}
        return {"hidden": hidden, "weight": self.lm_head.weight}

    def forward(
        self,
        input_ids: Tensor,
        audio_index: Tensor,
        label_index: Tensor,
        targets: Tensor,
        hypotheses: dict[str, Any] | None = None,
        **audio: Tensor,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the loss term `text`, for the positions of `label_index` only, and log-probabilities of
        `hypotheses`; inputs as `AudioLLMProcessor.collate` makes them. Right padding needs no mask under causal
        attention."""
        heard = None if hypotheses is None else self.audio(**audio)
        hidden = self.hidden(input_ids, audio_index, heard, **audio)
        outputs = {"text": {**self.head(hidden.flatten(0, 1)[label_index]), "targets": targets}}
        if hypotheses is not None and heard is not None:
            outputs["hypotheses"] = self.rescore(heard, **hypotheses)
        return outputs

    def rescore(
        self,
        heard: Tensor,
        input_ids: Tensor,
        audio_index: Tensor,
        attention_mask: Tensor,
        clips: Tensor,
        targets: Tensor,
        temperature: float,
        **_: Tensor,
    ) -> dict[str, Tensor]:
        """See `stentor.models.decoding.rescoring`, for what `audio` answers; the other inputs are prompts."""
        embeds = self.insert(heard, input_ids, audio_index)
        hidden = prompted_states(self.language_model, embeds, attention_mask, clips, targets)
        return text_log_probs(self.head, hidden, targets, temperature)

    def hidden(self, input_ids: Tensor, audio_index: Tensor, heard: Tensor | None = None, **audio: Tensor) -> Tensor:
        """Last hidden states [B, L, width] of the language model; `heard`: what `audio` answers, if it is known."""
        embeds = self.insert(self.audio(**audio) if heard is None else heard, input_ids, audio_index)
        return self.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    @torch.no_grad()
    def generate(
        self, inputs: dict[str, Tensor], max_new_tokens: list[int], eos_ids: set[int], **options: Any
    ) -> list[GenerationOutput]:
        """Output for each item of a batch made for generation; `options` are those of
        `decoding.search.answer`. What is generated up to the marker of the processor is no part of the text but its
        `language`."""
        audio = {name: tensor for name, tensor in inputs.items() if name not in NOT_AUDIO}
        embeds = self.embed(inputs["input_ids"], inputs["audio_index"], **audio)
        decoder = LanguageModelDecoder(
            self.language_model, self.head, embeds, inputs["attention_mask"], inputs["position_ids"]
        )
        results = answer(decoder, max_new_tokens, eos_ids | self.end_ids, **options)
        return [self._after_marker(output) for output in results]

    def _after_marker(self, output: GenerationOutput) -> GenerationOutput:
        if self.marker_id is None:
            return output
        begin = output.ids.index(self.marker_id) + 1 if self.marker_id in output.ids else 0
        ids, log_probs = output.ids[begin:], output.log_probs[begin:]
        return output._replace(ids=ids, log_probs=log_probs, language=output.ids[:begin])


class ClipwiseModel(AudioLLMModel):
    """A model whose encoder knows no padding: clips pass it one by one."""

    def audio(self, input_features: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """See `AudioLLMModel.audio`; `input_features` [1, frames of all clips, width] and `lengths` [B] in frames."""
        clips = input_features.split(lengths.tolist(), 1)
        return torch.cat([super(ClipwiseModel, self).audio(input_features=clip) for clip in clips])


def _like_weights(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Inputs of a part in the dtype of its weights: parts that are not trained may be in bfloat16."""
    weights = (p.dtype for n, p in part.named_parameters() if p.is_floating_point() and not is_adapter(n))
    dtype = next(weights, torch.float32)

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}
