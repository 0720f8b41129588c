"""Models on the frame grid: at each position the language model reads the token before and a frame of audio, added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stentor.models.contracts import Capabilities, GenerationOutput
from stentor.models.decoding.frame_grid import FrameGrid
from stentor.models.decoding.search import head_log_probs, search

NOT_AUDIO = ("input_ids", "audio_index", "attention_mask", "position_ids")
"""Inputs of a batch for generation that are not audio."""
_NO_END = {-1}


class DelayedModel:
    """Shared part of models on the frame grid, a mixin of their modules: decoding of whole clips, and of streams
    position by position (`audio_opener`, `encode`, `Row`, `read_position`)."""

    grid: FrameGrid
    capabilities = Capabilities(times_tokens=True, writes_along=True)
    window: int | None = None
    """Positions that the language model sees, its own included. None: all."""

    def listen(self, **audio: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Vectors that are added to the token embeddings [B, positions, width], and further inputs of the language
        model."""
        raise NotImplementedError

    def token_embeddings(self, ids: Tensor) -> Tensor:
        """[B, L] to [B, L, width]."""
        raise NotImplementedError

    def new_cache(self) -> Any:
        """An empty cache of the language model, for clips of one length."""
        raise NotImplementedError

    def read(self, embeds: Tensor, cache: Any = None, **conditions: Any) -> Tensor:
        """Last hidden states [B, L, width] of positions behind those in the cache."""
        raise NotImplementedError

    if TYPE_CHECKING:

        def head(self, hidden: Tensor) -> dict[str, Any]: ...

    def conditions(self, delay: int) -> dict[str, Tensor]:
        """Further inputs of the language model [1, ...] for a recording of this delay in frames."""
        return {}

    def audio_opener(self, processor: Any, delay: int) -> Callable[[], FrameStream]:
        """Opening of the audio of another recording that arrives, to be written after this delay in frames."""
        raise NotImplementedError

    def encode(self, recordings: Sequence[FrameStream]) -> None:
        """The next frames of recordings that are `ready`."""
        for recording in recordings:
            recording.encode()

    @torch.no_grad()
    def generate(
        self, inputs: dict[str, Tensor], max_new_tokens: list[int], eos_ids: set[int], **options: Any
    ) -> list[GenerationOutput]:
        """Text tokens of each item, without pauses and word starts, with their times (see `FrameGrid.texts`). `eos_ids`
        are not used: the grid ends with the audio."""
        frames, conditions = self.listen(**{name: t for name, t in inputs.items() if name not in NOT_AUDIO})
        decoder = GridDecoder(self, inputs["input_ids"], frames, conditions)
        results = []
        for output in search(decoder, max_new_tokens, _NO_END, **options):
            indices, times = self.grid.texts(output.ids)
            ids, log_probs = [output.ids[i] for i in indices], [output.log_probs[i] for i in indices]
            results.append(GenerationOutput(ids, log_probs, times))
        return results


class GridDecoder:
    """A `DelayedModel` with its cache, after the tokens before the first written one were read; as `search` takes
    it."""

    def __init__(self, model: DelayedModel, start: Tensor, frames: Tensor, conditions: dict[str, Any]):
        self.model, self.frames, self.conditions = model, frames, conditions
        self.cache = model.new_cache()
        self.position = 0
        self._read(start)

    def _read(self, tokens: Tensor) -> None:
        embeds = self.model.token_embeddings(tokens)
        end = self.position + tokens.shape[1]
        embeds = embeds + self.frames[:, self.position : end].to(embeds.dtype)
        self.position = end
        self.state = self.model.read(embeds, self.cache, **self.conditions)[:, -1]
        self.log_probs = head_log_probs(self.model.head(self.state))

    def step(self, tokens: Tensor) -> None:
        """Read tokens [B], each with the next frame of its clip."""
        self._read(tokens[:, None])

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        self.frames, self.log_probs = self.frames[rows], self.log_probs[rows]
        self.conditions = {name: t[rows] for name, t in self.conditions.items()}
        self.cache.batch_select_indices(rows)


class FrameStream(ABC):
    """The audio of a recording while it comes, as what is added to the token embeddings: `frames` [width], one for each
    position. What it holds is bounded, and does not depend on the pieces that the audio comes in."""

    def __init__(self) -> None:
        self.frames: deque[Tensor] = deque()
        self.ended = False
        self.samples = 0

    def add(self, samples: np.ndarray) -> None:
        """More audio: float32 [samples] at the processor's rate."""
        self.samples += len(samples)
        self._add(samples)

    def finish(self) -> None:
        """There is no more: what follows is the silence that the model was trained with."""
        self.ended = True
        self._finish()

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether there is audio for another frame."""

    @abstractmethod
    def _add(self, samples: np.ndarray) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    def encode(self) -> None:
        """Make the next frames."""
        raise NotImplementedError


class Row:
    """Cache of the language model for one recording: keys and values [1, heads, T, size] of each layer."""

    def __init__(self, conditions: dict[str, Tensor]):
        self.conditions = conditions
        self.layers: list[tuple[Tensor, Tensor]] = []
        self.position = 0

    def __len__(self) -> int:
        return self.layers[0][0].shape[2] if self.layers else 0


@torch.no_grad()
def read_position(model: DelayedModel, tokens: Sequence[int], frames: Sequence[Tensor], rows: Sequence[Row]) -> Tensor:
    """Log-probabilities [B, V] of the next token after one more position of each recording, whose `rows` continue."""
    from transformers import DynamicCache

    audio = torch.stack(list(frames))[:, None]
    embeds = model.token_embeddings(torch.tensor(tokens, device=audio.device)[:, None])
    lengths = torch.tensor([len(row) for row in rows], device=audio.device)
    longest = int(lengths.max())
    filled = next((row.layers for row in rows if row.layers), [])
    cache = DynamicCache()
    for i, pair in enumerate(filled):
        sides = [[(row.layers[i] if row.layers else _none(pair))[side] for row in rows] for side in (0, 1)]
        keys, values = (torch.cat([F.pad(t, (0, 0, longest - t.shape[2], 0)) for t in side]) for side in sides)
        cache.update(keys, values, i)
    visible = torch.arange(longest + 1, device=audio.device) >= longest - lengths[:, None]
    conditions = {name: torch.cat([row.conditions[name] for row in rows]) for name in rows[0].conditions}
    conditions["position_ids"] = torch.tensor([[row.position] for row in rows], device=audio.device)
    hidden = model.read(embeds + audio.to(embeds.dtype), cache, attention_mask=visible[:, None, None], **conditions)
    layers: list[Any] = list(cache.layers)
    for i, (row, n) in enumerate(zip(rows, lengths.tolist())):
        first = max(longest - n, longest + 2 - model.window) if model.window else longest - n
        place = (slice(i, i + 1), slice(None), slice(first, None))  # copied, as views would keep all rows
        row.layers = [(layer.keys[place].clone(), layer.values[place].clone()) for layer in layers]
        row.position += 1
    return head_log_probs(model.head(hidden[:, -1]))


def _none(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Keys and values of no position, like these."""
    return pair[0][:, :, :0], pair[1][:, :, :0]
