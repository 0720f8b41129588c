"""Whisper's forward for training and its batched decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.decoding import Result, search, token_limits
from stentor.models.parameters import is_sharded
from stentor.models.speech_llm.encoders import whisper_layers


class WhisperRecogniser(nn.Module):
    """The weights of a WhisperForConditionalGeneration under the same names, with losses and decoding.

    `languages` are the ids of the language tokens (none for English-only models), `suppressed` those that are never
    written and `suppressed_first` those that no text begins with, as the generation config says; `no_speech_id` is the
    token that stands for audio without speech, where the vocabulary has it. A half (encoder or
    decoder) without any trainable parameter stays in evaluation mode, also while the other trains.
    """

    model: Any
    proj_out: Any
    config: Any

    def __init__(
        self,
        whisper: Any,
        languages: list[int],
        suppressed: list[int],
        suppressed_first: list[int],
        no_speech_id: int | None = None,
    ):
        super().__init__()
        self.model = whisper.model
        self.proj_out = whisper.proj_out
        self.config = whisper.config
        self.generation_config = whisper.generation_config
        self.languages, self.suppressed, self.suppressed_first = languages, suppressed, suppressed_first
        self.no_speech_id = no_speech_id
        self.names_language = bool(languages)

    def train(self, mode: bool = True) -> WhisperRecogniser:
        super().train(mode)
        for half in (self.model.encoder, self.model.decoder):
            if not any(p.requires_grad for p in half.parameters()):
                half.eval()
        return self

    def encode(self, features: Tensor) -> Tensor:
        """Encoder states [B, T / 2, width] of log-mel [B, mels, T], T <= 3000; no graph for a frozen encoder."""
        encoder = self.model.encoder
        needed = torch.is_grad_enabled() and any(p.requires_grad for p in encoder.parameters())
        features = features.to(encoder.conv1.weight.dtype)
        with torch.set_grad_enabled(needed):
            if features.shape[2] < 2 * self.config.max_source_positions:
                hidden = F.gelu(encoder.conv2(F.gelu(encoder.conv1(features))))
                return whisper_layers(encoder, hidden)
            return encoder(features).last_hidden_state

    def prompted(self, hidden: Tensor, input_ids: Tensor, detect: Tensor | None, start: int = 0) -> Tensor:
        """`input_ids` with the language token, after the start token in the column `start`, of the rows in `detect` [B]
        set to the one that it detects.

        As in transformers: the likeliest language token after the start token.
        """
        if detect is None:
            return input_ids
        unknown = detect
        if not detect.any():
            if not is_sharded(self):
                return input_ids
            unknown = torch.arange(len(detect), device=detect.device) == 0  # another process may have one to detect
        with torch.no_grad():
            state = self.model.decoder(
                input_ids=input_ids[unknown, start : start + 1], encoder_hidden_states=hidden[unknown], use_cache=False
            ).last_hidden_state[:, -1]
            languages = torch.tensor(self.languages, device=input_ids.device)
            likeliest = languages[self.proj_out(state)[:, languages].argmax(-1)]
        input_ids = input_ids.clone()
        input_ids[detect, start + 1] = likeliest[: detect.sum()]
        return input_ids

    def forward(
        self, features: Tensor, input_ids: Tensor, label_index: Tensor, targets: Tensor, detect: Tensor | None = None
    ) -> dict[str, dict[str, Any]]:
        """What `CrossEntropy.sum` takes, for the loss term `text`.

        `features` [B, mels, T], T <= 3000; `input_ids` [B, L], padded on the right; `label_index` [N] positions
        of flattened `input_ids` whose next token is `targets` [N]; `detect` [B] marks rows of an unknown language.
        """
        hidden = self.encode(features)
        states = self.model.decoder(
            input_ids=self.prompted(hidden, input_ids, detect), encoder_hidden_states=hidden, use_cache=False
        ).last_hidden_state
        return {
            "text": {"hidden": states.flatten(0, 1)[label_index], "weight": self.proj_out.weight, "targets": targets}
        }

    @torch.no_grad()
    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: int | list[int],
        eos_ids: set[int],
        no_speech: list[float] | None = None,
        named: list[list[int]] | None = None,
        **options: Any,
    ) -> list[Result]:
        """Token ids after the prompt (end token left out) and their log-probabilities, for each item of a batch.

        `inputs` come from the processor's `collate(labels=False)`; `options` are those of
        `stentor.models.decoding.search`. An empty list as `no_speech` is filled with each item's probability of the
        token `no_speech_id` after the start token (Radford et al. 2022, section 4.5), and one as `named` with its
        language token, given or detected.
        """
        rows, prompt = inputs["input_ids"].shape
        longest = self.config.max_target_positions - prompt
        limits = [min(limit, longest) for limit in token_limits(max_new_tokens, rows)]
        decoder = _Decoder(self, **inputs)
        if no_speech is not None:
            no_speech += decoder.start_probs[:, self.no_speech_id].tolist()
        if named is not None:
            named += decoder.language_ids.tolist()
        return search(decoder, limits, eos_ids, **options)


class _Decoder:
    """The decoder with its caches: one call per step, rows may be reordered, repeated or dropped."""

    def __init__(self, model: WhisperRecogniser, features: Tensor, input_ids: Tensor, detect: Tensor | None = None):
        self.model = model
        self.hidden = model.encode(features)
        self.cache: Any = None
        # Text that is said to come before stands in front of the start token.
        self.start = int((input_ids[0] == model.config.decoder_start_token_id).int().argmax())
        input_ids = model.prompted(self.hidden, input_ids, detect, self.start)
        self.language_ids = input_ids[:, self.start + 1 : self.start + 2]
        self.log_probs = self._run(input_ids)
        self.log_probs[:, model.suppressed_first] = -torch.inf

    def _run(self, input_ids: Tensor) -> Tensor:
        out = self.model.model.decoder(
            input_ids=input_ids, encoder_hidden_states=self.hidden, past_key_values=self.cache, use_cache=True
        )
        if self.cache is None and self.model.no_speech_id is not None:
            self.start_probs = self.model.proj_out(out.last_hidden_state[:, self.start]).float().softmax(-1)
        self.cache = out.past_key_values
        log_probs = self.model.proj_out(out.last_hidden_state[:, -1]).float().log_softmax(-1)
        log_probs[:, self.model.suppressed] = -torch.inf
        return log_probs

    def step(self, tokens: Tensor) -> None:
        """Read tokens [B]; afterwards `log_probs` [B, V] is about the next one."""
        self.log_probs = self._run(tokens[:, None])

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        self.hidden, self.log_probs = self.hidden[rows], self.log_probs[rows]
        self.cache.batch_select_indices(rows)
