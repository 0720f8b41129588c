"""Generation by iterative unmasking: all codes of an utterance start as MASK and are revealed in a few steps,
most certain first.

Sources: MaskGIT (arXiv 2202.04200) for the loop; OmniVoice (arXiv 2604.00688) for the time-shifted schedule, the scores
over all codebooks at once with a penalty per codebook, and guidance by a row that sees nothing but the frames.

Nothing is kept from one step to the next: in a bidirectional model every position sees the codes that were revealed
last, the prompt's positions too, so that no layer's output of an earlier step is still exact.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

CLASS_SHARE = 0.1
"""Share of the codes of a cell, the likeliest, that are drawn from with `class_temperature`."""
MULTIPLE = 64
"""Compiled, lengths are rounded up to these, so that few of them are ever seen."""


@dataclass
class Prompt:
    """One utterance to speak: style and text, the reference's codes where there is one, and how long it shall be.

    The frames to speak follow it, at first all MASK; they are not among `ids`.
    """

    ids: Tensor
    """int64 [C, S]: a text token is repeated in every row, a reference frame has its codes. S may be 0."""
    audio_mask: Tensor
    """bool [S]: which positions are frames of the reference."""
    frames: int
    """Frames to speak, at least 1."""


def schedule(cells: int, steps: int, t_shift: float) -> list[int]:
    """Number of `cells` that each of `steps` steps reveals.

    With u = n / steps and r = t_shift u / (1 + (t_shift - 1) u), step n reveals ceil(cells (r_n+1 - r_n)), no more than
    are left, and the last step what is left. Below 1, `t_shift` leaves more of them to the late steps.
    """
    shifted = [t_shift * (n / steps) / (1 + (t_shift - 1) * (n / steps)) for n in range(steps + 1)]
    counts: list[int] = []
    for start, end in itertools.pairwise(shifted[:-1]):
        # Integers in exact arithmetic must not be rounded up.
        counts.append(min(max(1, math.ceil(cells * (end - start) - 1e-9)), cells - sum(counts)))
    return [*counts, cells - sum(counts)]


@dataclass(frozen=True)
class UnmaskingOptions:
    """Options of `generate`."""

    steps: int = 32
    guidance: float = 2.0
    t_shift: float = 0.1
    """See `schedule`."""
    layer_penalty: float = 5.0
    position_temperature: float = 5.0
    class_temperature: float = 0.0
    compile: bool = False
    """Run the model through torch.compile."""


@torch.inference_mode()
def generate(model: Any, prompts: Sequence[Prompt], *, seeds: int | Sequence[int] = 0, **options: Any) -> list[Tensor]:
    """The codes of each prompt's frames: int64 [C, frames], on the CPU. `options` are those of `UnmaskingOptions`.

    Each prompt draws from a generator of its own, seeded with its one of `seeds` (an integer: the same for all), so
    that its codes are the same whatever the other prompts are. With `guidance` > 0 each prompt has a second row in the
    same batch, which sees the frames alone; log-probabilities are then log_softmax(c + guidance (c - u)), c and u being
    the log-softmaxed logits of the two.

    The code of a cell is the likeliest, or with `class_temperature` > 0 drawn among the likeliest tenth. Its score is
    the largest log-probability minus `layer_penalty` times its codebook, and with `position_temperature` > 0 that,
    divided by it, plus Gumbel noise. The cells with the highest scores are revealed and never change again.
    """
    o = UnmaskingOptions(**options)
    # On the CPU, so that a seed means the same on every device.
    generators = [torch.Generator().manual_seed(seed) for seed in _seeds(seeds, len(prompts))]
    device = next(model.parameters()).device
    layout = BatchLayout(model, prompts, o.guidance > 0, device, MULTIPLE if o.compile else 1)
    hidden = torch.compile(model.hidden, dynamic=True) if o.compile else model.hidden
    reveal = torch.tensor([schedule(model.codebooks * p.frames, o.steps, o.t_shift) for p in prompts]).T
    penalty = o.layer_penalty * torch.arange(model.codebooks, device=device)[:, None]
    cells = layout.cells
    with autocast(device):
        for counts in reveal:
            if not counts.any():
                continue  # a few frames are all revealed before the last step
            log_probs = layout.log_probs(hidden, model.audio_heads, cells, o.guidance)
            likeliest, code = log_probs.max(-1)
            if o.class_temperature > 0:
                code = _sample(log_probs, o.class_temperature, generators, layout.frames)
            score, code = layout.spread(likeliest) - penalty, layout.spread(code)
            if o.position_temperature > 0:
                noise = torch.cat([_gumbel((model.codebooks, t), g).T for t, g in zip(layout.frames, generators)])
                score = score / o.position_temperature + layout.spread(noise.to(device))
            score = score.masked_fill(cells != model.mask_id, -math.inf).flatten(1)
            # Stable: the choice among equals does not depend on the padding.
            order = score.argsort(dim=1, descending=True, stable=True)
            ranked = torch.arange(order.shape[1], device=device) < counts.to(device)[:, None]
            chosen = torch.zeros_like(ranked).scatter_(1, order, ranked).view_as(cells)
            cells = torch.where(chosen, code, cells)
    return [codes[:, : p.frames] for codes, p in zip(cells.cpu(), prompts)]


class BatchLayout:
    """Positions of the frames to speak in the batch: the conditional rows and, with `guided`, the unconditional ones
    after them, all padded at the right to one length (a multiple of `multiple`)."""

    cells: Tensor
    """int64 [B, C, T] on the device: MASK in the frames to speak, 0 in the padding."""

    def __init__(self, model: Any, prompts: Sequence[Prompt], guided: bool, device: torch.device, multiple: int = 1):
        self.frames = [p.frames for p in prompts]
        self.guided, self.mask_id = guided, model.mask_id
        starts = [p.ids.shape[1] for p in prompts] + [0] * (len(prompts) if guided else 0)
        lengths = [s + t for s, t in zip(starts, self.frames * 2)]
        width = -(-max(lengths) // multiple) * multiple
        ids = torch.zeros(len(starts), model.codebooks, width, dtype=torch.long)
        audio = torch.zeros(len(starts), width, dtype=torch.bool)
        cells = torch.zeros(len(prompts), model.codebooks, max(self.frames), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, :, : starts[row]] = prompt.ids
            audio[row, : starts[row]] = prompt.audio_mask
            cells[row, :, : prompt.frames] = model.mask_id
        for row, (start, length) in enumerate(zip(starts, lengths)):
            audio[row, start:length] = True
        self.ids, self.audio, self.cells = ids.to(device), audio.to(device), cells.to(device)
        self.lengths = torch.tensor(lengths, device=device)
        # Each frame to speak: its row and place among the cells, and its place in the batch.
        index = [
            (row, t, start + t) for row, start in enumerate(starts) for t in range(self.frames[row % len(prompts)])
        ]
        self.row, self.frame, self.position = torch.tensor(index, device=device).T

    def log_probs(
        self, hidden: Callable[..., Tensor], heads: Callable[[Tensor], Tensor], cells: Tensor, guidance: float
    ) -> Tensor:
        """float32 [frames, C, V]: how likely the codes of each frame are, of one prompt after the other; MASK cannot
        be."""
        self.ids[self.row, :, self.position] = cells[self.row % len(cells), :, self.frame]
        states = hidden(input_ids=self.ids, audio_mask=self.audio, lengths=self.lengths)  # [rows, L, H]
        # Of text and reference nothing is predicted.
        log_probs = heads(states[self.row, self.position]).unflatten(-1, (cells.shape[1], -1)).float().log_softmax(-1)
        if self.guided:
            conditional, unconditional = log_probs.chunk(2)
            log_probs = (conditional + guidance * (conditional - unconditional)).log_softmax(-1)
        log_probs[..., self.mask_id] = -math.inf
        return log_probs

    def spread(self, values: Tensor) -> Tensor:
        """[frames, C] of one prompt after the other as [B, C, T], 0 in the padding."""
        out = values.new_zeros(self.cells.shape)
        out[self.row[: len(values)], :, self.frame[: len(values)]] = values
        return out


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 on GPUs that have it; one context for all steps, so that each weight is cast once."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


def _gumbel(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Gumbel noise on the CPU, where the generators are."""
    return -torch.empty(*shape).exponential_(generator=generator).log()


def _sample(
    log_probs: Tensor, temperature: float, generators: Sequence[torch.Generator], frames: Sequence[int]
) -> Tensor:
    """[frames, C] codes, each drawn among the likeliest of its cell in proportion to p ** (1 / temperature)."""
    count = math.ceil(CLASS_SHARE * (log_probs.shape[-1] - 1))
    likeliest, codes = log_probs.topk(count, -1)
    books = log_probs.shape[1]
    noise = torch.cat([_gumbel((books, t, count), g).transpose(0, 1) for t, g in zip(frames, generators)])
    chosen = (likeliest / temperature + noise.to(likeliest.device)).argmax(-1, keepdim=True)
    return codes.gather(-1, chosen).squeeze(-1)


def speak(
    model: Any, prompts: Sequence[Prompt], *, seeds: int | Sequence[int] = 0, batch_tokens: int = 8192, **options: Any
) -> list[np.ndarray]:
    """As `generate`, for any number of prompts: [C, frames] each, in their order; int16, of larger vocabularies int32.

    Prompts of similar length share a batch of at most `batch_tokens` positions, padding included (one prompt at least).
    """
    each = _seeds(seeds, len(prompts))
    dtype = torch.int16 if model.vocabulary <= 1 << 15 else torch.int32
    rows = 2 if options.get("guidance", 2.0) > 0 else 1
    lengths = [p.ids.shape[1] + p.frames for p in prompts]
    order = sorted(range(len(prompts)), key=lambda i: (-lengths[i], i))
    results: dict[int, np.ndarray] = {}
    while order:
        count = max(1, batch_tokens // (rows * lengths[order[0]]))
        batch, order = order[:count], order[count:]
        outputs = generate(model, [prompts[i] for i in batch], seeds=[each[i] for i in batch], **options)
        results |= {i: codes.to(dtype).numpy() for i, codes in zip(batch, outputs)}
    return [results[i] for i in range(len(prompts))]


def _seeds(seeds: int | Sequence[int], count: int) -> list[int]:
    each = [seeds] * count if isinstance(seeds, int) else list(seeds)
    if len(each) != count:
        raise ValueError(f"{count} prompts and {len(each)} seeds")
    return each
