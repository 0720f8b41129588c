"""Examples to batches for the speech LLM as a delayed stream: one token to write for each position of the audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stentor.data.batch import Batch, Example, num_samples
from stentor.data.trained_speech import StreamedSpeech
from stentor.errors import ConfigError
from stentor.models.collate import Contents, usable_batch
from stentor.models.decoding.frame_grid import FrameGrid
from stentor.models.delayed.config import in_frames
from stentor.models.delayed.processor import DelayedProcessor
from stentor.models.encoders.geometry import SAMPLE_RATE
from stentor.models.encoders.streaming.chunks import Streaming
from stentor.models.speech_llm.config import SpeechLLMStream
from stentor.models.speech_llm.processor import SpeechLLMProcessor
from stentor.models.text.control_tokens import add_control_tokens

PAUSE, WORD = "<pause>", "<word>"
ROOM = 10
"""Positions of silence behind the delay, for the tokens of the last word (as Voxtral Realtime has them)."""


class DelayedSpeechProcessor(DelayedProcessor, SpeechLLMProcessor):
    """Features and tokens on the grid; what is read before the first written token are pauses, one and the delay's."""

    window: int
    """Positions that the language model sees."""
    samples_a_position: int
    token_dropout: float

    @classmethod
    def of(cls, processor: SpeechLLMProcessor, stream: SpeechLLMStream) -> DelayedSpeechProcessor:
        """The processor of a model with `stream`; the tokenizer gets tokens for the pause and the start of words."""
        delayed = cls.__new__(cls)
        delayed.__dict__ = dict(vars(processor))
        missing = [t for t in (PAUSE, WORD) if t not in delayed.tokenizer.get_vocab()]
        if missing:
            add_control_tokens(delayed.tokenizer, missing)
        rate = delayed.shape.frame_rate / delayed.factor
        pause, word = delayed.tokenizer.convert_tokens_to_ids([PAUSE, WORD])
        delayed.grid = FrameGrid(rate, pause, word)
        delayed.known_delays = stream.limits
        delayed.delays = in_frames(stream.limits[0], rate), in_frames(stream.limits[1], rate)
        delayed.delay = delayed.delays[1]
        delayed.window = round(stream.reach * rate)
        delayed.token_dropout = stream.token_dropout
        delayed.trained_speech = StreamedSpeech(processor.trained_speech)
        delayed.samples_a_position = round(SAMPLE_RATE / rate)
        return delayed

    def start(self, delay: int) -> list[int]:
        return [self.grid.pause_id] * (delay + 1)

    def positions_of(self, samples: int, delay: int) -> int:
        """Positions of a clip of so many samples, with the silence behind it."""
        return -(-samples // self.samples_a_position) + delay + 1 + ROOM

    def max_new_tokens(self, seconds: float) -> int:
        return self.positions_of(round(seconds * SAMPLE_RATE), 0) - 1

    def tokens(self, cut: object, seconds: float) -> int:
        return self.positions_of(round(seconds * SAMPLE_RATE), self.delays[1])

    def piece_ids(self, piece: str) -> list[int]:
        return self.ids(piece if piece[:1].isspace() else f" {piece}")  # the first word as all others

    def chunks(self, examples: Sequence[Example], training: bool) -> dict[str, Tensor]:
        if drawn := super().chunks(examples, training):
            return drawn
        assert isinstance(self.streaming, Streaming)
        frames = [max(1, round(s * self.shape.frame_rate)) for s in self.streaming.soonest]
        return {"chunks": torch.tensor([[*frames, 0]] * len(examples))}

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        reason = super().refusal(example, labels)
        return reason or (self.misplaced(example) if labels and example.text else None)

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch for training (`labels`, right padding) or for generation, where all have one delay. Inputs besides
        features and chunks: `delays` [B] in positions; `input_ids` [B, L]; in training `label_index` [T], positions of
        the flattened sequence that predict `targets` [T]."""
        if packed:
            raise ConfigError("data.layout: a model with `model.stream` needs the layout padded.")
        if labels:
            examples = [self.draw_delay(e) for e in examples]
        return usable_batch(self, examples, labels, self._contents)

    def _contents(self, examples: Sequence[Example], labels: bool, packed: bool = False) -> Contents:
        delays = [self.delay_of(e) for e in examples]
        features, lengths = self.features([self._with_silence(e, delay) for e, delay in zip(examples, delays)])
        inputs = {"features": features, "feature_lengths": lengths, **self.chunks(examples, labels)}
        inputs["delays"] = torch.tensor(delays)
        starts = [self.start(delay) for delay in delays]
        written = [self.place(e)[0] if labels else [] for e in examples]
        rows = [torch.tensor(start + self._read(e, tokens)) for e, start, tokens in zip(examples, starts, written)]
        inputs["input_ids"] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad_id)
        counts = {}
        if labels:
            width = inputs["input_ids"].shape[1]
            first = [i * width + len(start) - 1 for i, start in enumerate(starts)]
            index = [torch.arange(at, at + len(tokens)) for at, tokens in zip(first, written)]
            inputs["label_index"] = torch.cat(index)
            inputs["targets"] = torch.tensor([token for tokens in written for token in tokens])
            counts["text"] = len(inputs["targets"])
            if self.ctc is not None:
                counts["ctc"] = self.ctc_targets(examples, lengths, inputs)
        return inputs, counts, sum(map(len, rows)), inputs["input_ids"].numel()

    def _read(self, example: Example, tokens: list[int]) -> list[int]:
        """The written tokens as the model reads them: in training some are replaced by pauses."""
        if example.rng is None or not self.token_dropout:
            return tokens
        dropped = example.rng.random(len(tokens)) < self.token_dropout
        return [self.grid.pause_id if drop else token for token, drop in zip(tokens, dropped)]

    def _with_silence(self, example: Example, delay: int) -> Example:
        samples = num_samples(example)
        total = self.positions_of(samples, delay) * self.samples_a_position
        return replace(example, audio=np.pad(np.asarray(example.audio), (0, total - samples)))
