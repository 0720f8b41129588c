"""Alignment module: times of the words of a known text, by cross-attention from text states to audio frames.

The text comes as states of the language model at its tokens, the audio as encoder frames joined with the log-mel
itself, on a grid of 10 or 20 ms: no position of the language model (80 ms) is looked at. Every word gets a distribution
of its start and of its end over the grid, and `decode` finds the best times for all words together.

Two heads. `attention` (after VoxLM's alignment module, with supervised attention): one query per word, whose attention
covers the word's frames. `slots` (after the non-autoregressive slot filling of Qwen3-ForcedAligner, arXiv 2601.21337):
two queries per word, one for each boundary, each classified over the frames; answers out of order are repaired by the
longest increasing subsequence.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.encoders.geometry import HOP, SAMPLE_RATE, Geometry, mask
from stentor.models.speech_llm.boundaries import LOW, SHORTEST, Scores, decode, refine, repair
from stentor.models.speech_llm.config import AlignerSection


@dataclass
class AlignedText:
    """The texts of a batch as the aligner reads them."""

    states: Tensor
    """Last hidden states [N, text] of the language model, over all sequence positions."""
    tokens: Tensor
    """Its input embeddings [N, text]."""
    rows: Tensor
    """Positions [B, K] of each text's tokens among the N; -1: padding."""
    word_tokens: Tensor
    """First and last token of each word among the K, [B, W, 2]; -1: padding."""
    word_parts: Tensor
    """Share of the first token that lies before the word and of the last token up to the word's end, [B, W, 2], for
    words that share a token."""


class WordAligner(nn.Module):
    """Word times from text states and audio frames.

    `text` is the width of the language model, `audio` that of the encoder; `shape` is the encoder's geometry.
    """

    def __init__(self, settings: AlignerSection, text: int, audio: int, shape: Geometry):
        super().__init__()
        width = settings.width
        self.kind, self.shape, self.warp = settings.kind, shape, settings.warp
        # Steps of the encoder's input between two grid points. Encoders of raw audio have a frame every 20 ms.
        self.stride = 100 // settings.rate if shape.kind == "mel" else round(SAMPLE_RATE / shape.frame_rate)
        self.norm_audio, self.from_audio = nn.LayerNorm(audio), nn.Linear(audio, width)
        self.from_mel = MelOnGrid(shape.mels, width, self.stride) if shape.kind == "mel" else None
        self.listen = nn.ModuleList(LocalConvolution(width, 9) for _ in range(2))
        self.norm_states, self.norm_tokens = nn.LayerNorm(text), nn.LayerNorm(text)
        self.from_text = nn.Linear(2 * text, width)
        self.layers = nn.ModuleList(
            AlignerLayer(width, settings.heads, settings.dropout) for _ in range(settings.layers)
        )
        self.place = nn.Linear(2 * PLACES, width)
        self.norm_keys = nn.LayerNorm(width)
        words = 1 if self.kind == "attention" else 2
        self.to_word = nn.ModuleList(nn.Linear(2 * width + 2, width) for _ in range(words))
        self.norm_words = nn.LayerNorm(width)
        self.between = AlignerLayer(width, settings.heads, settings.dropout)
        self.queries = nn.Linear(width, 3 * width if words == 1 else width)
        self.keys = nn.Linear(width, 3 * width if words == 1 else width)
        self.silence: Any = nn.Linear(width, 1) if words == 1 else None
        self.register_buffer("calibration", torch.tensor([1.0, 0.0, 0.0]))

    @property
    def step(self) -> float:
        """Seconds between two grid points."""
        return self.stride * (HOP if self.shape.kind == "mel" else 1) / SAMPLE_RATE

    def points(self, lengths: Tensor) -> Tensor:
        """Grid points of clips with so many feature steps; the last lies at the clip's end or just beyond."""
        return -(-lengths // self.stride) + 1

    def moved(self, lengths: Tensor, times: Tensor) -> tuple[Tensor | None, Tensor]:
        """A drawn unevenness of clips with so many feature steps [B] (see `uneven`), None when that is off, and the
        word times [B, W, 2] in seconds that follow from it."""
        if not self.warp:
            return None, times
        moved = uneven(self.points(lengths), self.step, self.warp)
        at = (times.nan_to_num() / self.step).flatten(1)
        moved_times = pick(moved[..., None], at)[..., 0].view_as(times) * self.step
        return moved, torch.where(times.isfinite(), moved_times, times)

    def audio_keys(
        self, features: Tensor, lengths: Tensor, hidden: Tensor, moved: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Audio keys on the grid [B, T, width], zero at padding, and their mask [B, T]. `moved` [B, T] says where each
        grid point goes (see `uneven`); None: unchanged."""
        keys, keep = self.on_grid(features, lengths, hidden)
        if moved is not None:
            keys = pick(keys, inverse(moved))
        keys = keys + self.place(places(keep).to(keys.dtype))
        for layer in self.listen:
            keys = layer(keys, keep)
        return self.norm_keys(keys) * keep[..., None], keep

    def on_grid(self, features: Tensor, lengths: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Audio on the grid [B, T, width], frames and log-mel joined, and its mask [B, T]."""
        points = self.points(lengths)
        size = int(points.max())
        frames = self.from_audio(self.norm_audio(hidden.to(self.from_audio.weight.dtype)))
        frames = frames * mask(self.shape.frames(lengths), frames.shape[1])[..., None]
        per_point = self.shape.frame_rate * self.step
        needed = int((size - 1) * per_point) + 3
        keys = stretch(F.pad(frames, (0, 0, 0, max(0, needed - frames.shape[1]))), per_point, size)
        if self.from_mel is not None:
            steps = min(features.shape[2], int(lengths.max()))
            mel = features[:, :, :steps] * mask(lengths, steps)[:, None]
            keys = keys + self.from_mel(mel.to(keys.dtype), lengths, size)
        return keys, mask(points, size)

    def forward(
        self, features: Tensor, lengths: Tensor, hidden: Tensor, text: AlignedText, moved: Tensor | None = None
    ) -> Scores:
        """Boundary scores of all words.

        `features` and `lengths` as the encoder got them, `hidden` its frames [B, T', audio]. `moved` [B, T] makes the
        speech uneven, see `uneven`: scores are then on the grid that it leads to.
        """
        keys, audible = self.audio_keys(features, lengths, hidden, moved)
        spoken, words = text.rows >= 0, text.word_tokens[..., 0] >= 0
        rows = text.rows.clamp(min=0)
        dtype = keys.dtype
        states, tokens = self.norm_states(text.states[rows].to(dtype)), self.norm_tokens(text.tokens[rows].to(dtype))
        states = self.from_text(torch.cat([states, tokens], -1)) + self.place(places(spoken).to(dtype))
        for layer in self.layers:
            states = layer(states, spoken, keys, audible)
        ends = text.word_tokens.clamp(min=0)
        picked = [states.gather(1, ends[..., i : i + 1].expand(-1, -1, states.shape[2])) for i in (0, 1)]
        word_states = torch.cat([*picked, text.word_parts.to(dtype)], -1)
        points = self.points(lengths)
        if self.kind == "attention":
            query = self.between(self.to_word[0](word_states), words, keys, audible)
            q = self.queries(self.norm_words(query)).chunk(3, -1)
            k = self.keys(keys).chunk(3, -1)
            start, end, inside = (a @ b.transpose(1, 2) * a.shape[-1] ** -0.5 for a, b in zip(q, k))
            inside = torch.cat([inside, self.silence(keys).transpose(1, 2)], 1).float()
            real = torch.cat([words, words.new_ones(len(words), 1)], 1)[..., None] & audible[:, None]
            inside = inside.masked_fill(~real, LOW)
        else:
            slots = torch.stack([to(word_states) for to in self.to_word], 2).flatten(1, 2)
            query = self.between(slots, words.repeat_interleave(2, 1), keys, audible)
            score = self.queries(self.norm_words(query)) @ self.keys(keys).transpose(1, 2) * keys.shape[-1] ** -0.5
            start, end, inside = score[:, ::2], score[:, 1::2], None
        start, end = (s.float().masked_fill(~audible[:, None], LOW).log_softmax(-1) for s in (start, end))
        return Scores(start, end, inside, words, points)

    @torch.no_grad()
    def times(self, scores: Scores) -> tuple[Tensor, Tensor]:
        """Start and end of each word in seconds [B, W, 2], and how sure they are [B, W].

        Sure is the smaller of the probabilities that start and end lie within two grid points. Times of a clip with
        more words than grid points mean nothing.
        """
        if self.kind == "attention":
            starts, ends = decode(scores, shortest=max(1, round(SHORTEST / self.step)))
        else:
            starts, ends = repair(scores)
        fine, sure = zip(refine(scores.start.exp(), starts), refine(scores.end.exp(), ends))
        # A boundary moves by less than a point, so that neighbours may pass each other by a little.
        order = torch.stack(fine, -1).flatten(1).cummax(1).values.view(*starts.shape, 2)
        last = (scores.points - 1)[:, None, None].to(order.dtype)
        return order.minimum(last) * self.step, torch.minimum(*sure)


PLACES = 8


def places(keep: Tensor) -> Tensor:
    """Fourier features [B, N, 2 * PLACES] of how far along each element lies, 0 to 1, from a mask [B, N].

    Speech is even enough that the share of the text tells about the share of the audio.
    """
    share = (keep.cumsum(1) - 0.5) / keep.sum(1, keepdim=True).clamp(min=1)
    angle = share[..., None] * torch.pi * 2.0 ** torch.arange(PLACES, device=keep.device)
    return torch.cat([angle.sin(), angle.cos()], -1) * keep[..., None]


def stretch(frames: Tensor, per_point: float, size: int) -> Tensor:
    """Frames [B, T, C], which go beyond the last point, on a grid of `size` points, `per_point` frames from point to
    point, linear between frames."""
    at = torch.arange(size, device=frames.device) * per_point
    low = at.floor().long()
    part = (at - low).to(frames.dtype)[:, None]
    return frames[:, low] * (1 - part) + frames[:, low + 1] * part


def uneven(points: Tensor, step: float, strength: float) -> Tensor:
    """Where each grid point goes when clips of so many `points` [B] are spoken unevenly: float [B, T], never falling.

    Stretches of half a second to five are played faster or slower, by a factor whose logarithm has the standard
    deviation `strength`; first and last point stay. Half of the clips stay as they are. Without this the aligner
    learns that the share of the text tells the share of the audio, which holds for read speech only.
    """
    size, device = int(points.max()), points.device
    stretch = 0.5 * 10 ** torch.rand(len(points), size, device=device)  # seconds; more of them than there can be
    ends = (stretch / step).cumsum(1)
    owner = torch.searchsorted(ends, torch.arange(size, device=device).float().expand(len(points), -1).contiguous())
    pace = (strength * torch.randn(len(points), size, device=device)).exp().gather(1, owner.clamp(max=size - 1))
    gone = F.pad(pace[:, 1:].cumsum(1), (1, 0))
    last = (points - 1)[:, None]
    gone = gone * last / gone.gather(1, last).clamp(min=1e-6)
    same = torch.arange(size, device=device).float().expand_as(gone)
    changed = torch.rand(len(points), 1, device=device) < 0.5
    return torch.where(changed & (same <= last), gone, same)


def inverse(moved: Tensor) -> Tensor:
    """Source point, as a float [B, T], of each grid point; for a map as `uneven` makes them."""
    size = moved.shape[1]
    grid = torch.arange(size, device=moved.device).to(moved.dtype).expand_as(moved).contiguous()
    high = torch.searchsorted(moved.contiguous(), grid).clamp(1, max(size - 1, 1))
    below, above = moved.gather(1, high - 1), moved.gather(1, high.clamp(max=size - 1))
    return high - 1 + ((grid - below) / (above - below).clamp(min=1e-6)).clamp(0, 1)


def pick(values: Tensor, at: Tensor) -> Tensor:
    """Values [B, T, C] at fractional points [B, N], linear between points: [B, N, C]."""
    low = at.floor().long().clamp(0, max(values.shape[1] - 2, 0))
    part = (at - low).to(values.dtype)[..., None]
    near = [
        values.gather(1, i[..., None].expand(-1, -1, values.shape[2]))
        for i in (low, (low + 1).clamp(max=values.shape[1] - 1))
    ]
    return near[0] * (1 - part) + near[1] * part


class MelOnGrid(nn.Module):
    """The log-mel [B, mels, T] on the grid [B, size, width]: what the encoder's frames have blurred."""

    def __init__(self, mels: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 2 * stride + 1, stride, padding=stride)
        self.norm = nn.LayerNorm(width)

    def forward(self, mel: Tensor, lengths: Tensor, size: int) -> Tensor:
        stride = self.conv2.stride[0]
        mel = F.pad(mel, (0, max(0, (size - 1) * stride + 1 - mel.shape[2])))
        # The first convolution answers for padding too, which the end of a clip alone would not have seen.
        sharp = F.gelu(self.conv1(mel)) * mask(lengths, mel.shape[2])[:, None]
        return self.norm(self.conv2(sharp).transpose(1, 2)[:, :size])


class LocalConvolution(nn.Module):
    """A residual depthwise convolution over time with a feed-forward layer, [B, T, width]; padding is masked."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.depth = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        hidden = self.norm(x) * keep[..., None]
        return x + self.mix(F.gelu(self.depth(hidden.transpose(1, 2)).transpose(1, 2)))


class AlignerLayer(nn.Module):
    """Neighbours, self-attention, cross-attention to the audio, feed-forward; each residual, norms first."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.local = LocalConvolution(width, 5)
        self.myself = AlignerAttention(width, heads)
        self.audio = AlignerAttention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, keep: Tensor, keys: Tensor, audible: Tensor) -> Tensor:
        x = self.local(x, keep)
        x = x + self.dropout(self.myself(x, None, keep))
        x = x + self.dropout(self.audio(x, keys, audible))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class AlignerAttention(nn.Module):
    """Multi-head attention of `x` to `keys` (itself when None), bool mask [B, T] of the keys."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, keys: Tensor | None, keep: Tensor) -> Tensor:
        x = self.norm(x)
        keys = x if keys is None else keys
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), *self.kv(keys).chunk(2, -1)))
        # A text without words leaves a row without any key, whose softmax would be no number.
        bias = torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, LOW)[:, None, None]
        return self.out(F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2))
