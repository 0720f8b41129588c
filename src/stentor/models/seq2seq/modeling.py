"""Forward for training and batched decoding of encoder-decoder recognisers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.contracts import GenerationOutput, Recognizer
from stentor.models.decoding.rescoring import text_log_probs
from stentor.models.decoding.search import answer, token_limits
from stentor.models.seq2seq.processor import Seq2SeqProcessor


class Seq2SeqModel(Recognizer, nn.Module):
    """The weights of a transformers model for conditional generation under the same names, with losses and decoding.

    A model overrides `encoder_states`, and `adjust` where its encoder lets clips of a batch touch one another. A half
    (encoder or decoder) without any trainable parameter stays in evaluation mode, also while the other trains.
    """

    model: Any
    proj_out: Any
    config: Any
    base_model_prefix = "model"
    """Interface that PEFT needs of a model with a config of transformers."""
    no_speech_id: int | None = None
    """The token that stands for audio without speech, where the vocabulary has it."""

    def __init__(self, pretrained: Any, processor: Seq2SeqProcessor):
        super().__init__()
        self.model, self.proj_out = pretrained.model, pretrained.proj_out
        self.config, self.generation_config = pretrained.config, pretrained.generation_config
        self.shape, self.most, self.start_id = processor.shape, processor.most, processor.start_id
        self.suppressed: list[int] = self.generation_config.suppress_tokens or []
        """Tokens that are never written."""
        self.suppressed_first: list[int] = self.generation_config.begin_suppress_tokens or []
        """Tokens that no text begins with."""
        self.adjust()

    # Hooks

    def adjust(self) -> None:
        """Make the encoder's states a function of the clip alone."""

    def encoder_states(self, features: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        """Encoder states [B, frames, width] of the processor's features, and which of them are of the clip [B, frames];
        None: all."""
        raise NotImplementedError

    def prompted(
        self, states: tuple[Tensor, Tensor | None], input_ids: Tensor, detect: Tensor | None, start: int = 0
    ) -> Tensor:
        """`input_ids` with what the model itself has to put into the prompt, whose start token is in the column
        `start`."""
        return input_ids

    # What is shared

    def train(self, mode: bool = True) -> Seq2SeqModel:
        super().train(mode)
        for half in (self.model.encoder, self.model.decoder):
            if not any(p.requires_grad for p in half.parameters()):
                half.eval()
        return self

    def encode(self, features: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """As `encoder_states`; no graph for a frozen encoder."""
        parameters = list(self.model.encoder.parameters())
        needed = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        with torch.set_grad_enabled(needed):
            return self.encoder_states(features.to(parameters[0].dtype), lengths)

    def decode(self, states: tuple[Tensor, Tensor | None], input_ids: Tensor, cache: Any = None, **options: Any) -> Any:
        """Output of transformers' decoder for tokens [B, L] behind the encoder's states."""
        hidden, valid = states
        masks = {} if valid is None else {"encoder_attention_mask": valid}
        return self.model.decoder(
            input_ids=input_ids, encoder_hidden_states=hidden, past_key_values=cache, **masks, **options
        )

    def forward(
        self,
        features: Tensor,
        input_ids: Tensor,
        label_index: Tensor,
        targets: Tensor,
        lengths: Tensor | None = None,
        detect: Tensor | None = None,
        hypotheses: dict[str, Any] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of `CrossEntropy.sum`, for the loss term `text`, and log-probabilities of `hypotheses`.

        `features` and `lengths`: see the processor's `audio_inputs`; `input_ids` [B, L], padded on the right;
        `label_index` [N] positions of flattened `input_ids` whose next token is `targets` [N]; `detect` [B] marks rows
        of an unknown language.
        """
        states = self.encode(features, lengths)
        hidden = self.decode(states, self.prompted(states, input_ids, detect), use_cache=False).last_hidden_state
        outputs = {"text": {**self.head(hidden.flatten(0, 1)[label_index]), "targets": targets}}
        if hypotheses is not None:
            outputs["hypotheses"] = self.rescore(states, detect, **hypotheses)
        return outputs

    def head(self, hidden: Tensor) -> dict[str, Tensor]:
        """The output layer and its inputs [N, width], in the form that the loss takes."""
        head = {"hidden": hidden, "weight": self.proj_out.weight}
        return head if self.proj_out.bias is None else {**head, "bias": self.proj_out.bias}

    def rescore(
        self,
        states: tuple[Tensor, Tensor | None],
        detect: Tensor | None,
        input_ids: Tensor,
        clips: Tensor,
        targets: Tensor,
        temperature: float,
    ) -> dict[str, Tensor]:
        """See `stentor.models.decoding.rescoring`; `input_ids` [B, P] are prompts. Tokens that are never written
        (`suppressed`) are not taken out of the distributions."""
        prompts = self.prompted(states, input_ids, detect, self._start(input_ids))[clips]
        fed = torch.cat([prompts, targets[:, :-1].clamp(min=0)], 1)
        hidden, valid = states
        rows = hidden[clips], None if valid is None else valid[clips]
        out = self.decode(rows, fed, use_cache=False).last_hidden_state
        return text_log_probs(self.head, out[:, prompts.shape[1] - 1 :], targets, temperature)

    def _start(self, input_ids: Tensor) -> int:
        """The column of the start token in prompts: text that is said to come before stands in front of it."""
        return int((input_ids[0] == self.start_id).int().argmax())

    @torch.no_grad()
    def generate(
        self, inputs: dict[str, Tensor], max_new_tokens: int | list[int], eos_ids: set[int], **options: Any
    ) -> list[GenerationOutput]:
        """Output after the prompt, for each item of a batch.

        `inputs` come from the processor's `collate(labels=False)`; `options` are those of `decoding.search.answer`.
        `no_speech` is the probability of the token `no_speech_id` after the start token (Radford et al. 2022, section
        4.5), `language` the language token, given or detected.
        """
        rows, prompt = inputs["input_ids"].shape
        limits = [min(limit, self.most - prompt) for limit in token_limits(max_new_tokens, rows)]
        decoder = _Decoder(self, **inputs)
        silent = [None] * rows if self.no_speech_id is None else decoder.start_probs[:, self.no_speech_id].tolist()
        languages = decoder.language_ids.tolist() if self.capabilities.names_language else [None] * rows
        outputs = answer(decoder, limits, eos_ids, **options)
        return [o._replace(language=ids, no_speech=p) for o, ids, p in zip(outputs, languages, silent, strict=True)]


class _Decoder:
    """The decoder with its caches: one call per step, rows may be reordered, repeated or dropped."""

    def __init__(
        self,
        model: Seq2SeqModel,
        features: Tensor,
        input_ids: Tensor,
        lengths: Tensor | None = None,
        detect: Tensor | None = None,
    ):
        self.model = model
        self.states = model.encode(features, lengths)
        self.cache: Any = None
        self.start = model._start(input_ids)
        input_ids = model.prompted(self.states, input_ids, detect, self.start)
        self.language_ids = input_ids[:, self.start + 1 : self.start + 2]
        self.log_probs = self._run(input_ids)
        self.log_probs[:, model.suppressed_first] = -torch.inf

    def _run(self, input_ids: Tensor) -> Tensor:
        out = self.model.decode(self.states, input_ids, self.cache, use_cache=True)
        if self.cache is None and self.model.no_speech_id is not None:
            self.start_probs = self.model.proj_out(out.last_hidden_state[:, self.start]).float().softmax(-1)
        self.cache = out.past_key_values
        log_probs: Tensor = self.model.proj_out(out.last_hidden_state[:, -1]).float().log_softmax(-1)
        log_probs[:, self.model.suppressed] = -torch.inf
        return log_probs

    def step(self, tokens: Tensor) -> None:
        """Read tokens [B]; afterwards `log_probs` [B, V] is about the next one."""
        self.log_probs = self._run(tokens[:, None])

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        hidden, valid = self.states
        self.states = hidden[rows], None if valid is None else valid[rows]
        self.log_probs = self.log_probs[rows]
        self.cache.batch_select_indices(rows)
