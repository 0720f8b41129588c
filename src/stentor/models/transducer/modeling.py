"""Transducer: forward for training, decoding with times, CTC classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.losses.base import WILDCARD
from stentor.losses.transducer.best_path import best_path
from stentor.losses.transducer.lattice import Lattice
from stentor.models.contracts import Capabilities, GenerationOutput
from stentor.models.decoding.bias import Bias
from stentor.models.decoding.rescoring import IGNORED
from stentor.models.decoding.search import ranked
from stentor.models.decoding.transducer import Hypothesis, Path, State, greedy, search
from stentor.models.encoders.cache import EncoderCache
from stentor.models.encoders.geometry import Geometry

BIASED = 4
"""Least beams where phrases are favoured: greedily hardly any is written (`python benchmarks hotwords`)."""
NODES = 8192
"""Pairs of a frame and a token whose logits are in memory at a time when texts are rescored."""
MAX_SYMBOLS = 10
"""Most tokens at one frame."""


class TransducerModel(EncoderCache):
    """Base of all transducers; `encode` and `predict` are its parts."""

    capabilities = Capabilities(times_tokens=True, ends_text=False, aligns="tokens")
    blank: int
    durations: Sequence[int] | None = None
    """Frames that a token and its durations jump (TDT), whose logits follow those of the tokens. None: RNN-T."""
    max_symbols = MAX_SYMBOLS
    joint: nn.Module
    """`joint(encoder [..., J], predictor [..., J])` gives logits [..., V]; the two are broadcast."""
    frame_seconds: float
    """Seconds from one frame to the next."""
    times_head: Any
    """Where there is one, what `around` says comes from it."""
    calibration: Tensor
    """Buffer [3], see `confidence_map`."""
    delays: Tensor | None
    """Buffer [2]: these seconds are added to the first and the last second of each token, as a token is written when it
    was heard, not when it begins. None: none are."""

    def __init__(self) -> None:
        super().__init__()
        self.times_head = None

    def encode(self, features: Tensor, lengths: Tensor, **conditions: Tensor) -> tuple[Tensor, Tensor]:
        """Frames [B, T, J] as the joint takes them, and how many each item has [B]. `conditions`: what else the
        processor tells of the items."""
        raise NotImplementedError

    def project_encoder(self, hidden: Tensor) -> Tensor:
        """Frames [B, T, J] as the joint takes them, of the encoder's [B, T, width]."""
        raise NotImplementedError

    def predict(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Outputs [B, U, J] after each of the tokens [B, U], and the state behind them: tensors [layers, B, width].
        The first token of a text is blank; `state` None: the start."""
        raise NotImplementedError

    def joint_arguments(
        self, states: Tensor, frames: Tensor, targets: Tensor, target_lengths: Tensor
    ) -> dict[str, Any]:
        """Arguments of the transducer losses (see `stentor.losses.all_paths`) for encoded frames and targets [B, U]."""
        outputs, _ = self.predict(F.pad(targets, (1, 0), value=self.blank), None)
        return {
            "encoder": states,
            "predictor": outputs,
            "joint": self.joint,
            "lengths": frames,
            "targets": targets,
            "target_lengths": target_lengths,
            "blank": self.blank,
            **({} if self.durations is None else {"durations": self.durations}),
        }

    def rescore(
        self, states: Tensor, frames: Tensor, clips: Tensor, targets: Tensor, temperature: float
    ) -> dict[str, Tensor]:
        """See `stentor.models.decoding.rescoring`: the sum over all alignments, for encoded frames."""
        lengths = (targets != IGNORED).sum(1)
        arguments = self.joint_arguments(states[clips], frames[clips], targets.clamp(min=0), lengths)
        lattice = Lattice(arguments["lengths"], arguments["targets"], lengths, self.blank)
        durations = self.durations or ()
        encoder, predictor = arguments["encoder"], arguments["predictor"]
        scores = lattice.scores(self.joint, encoder, predictor, NODES, len(durations))
        return {"log_probs": -lattice.losses(*lattice.arcs(*scores, durations))}

    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: list[int],
        eos_ids: Any = (),
        beams: int = 1,
        bias: Bias | None = None,
        num_answers: int = 1,
        **_: Any,
    ) -> list[GenerationOutput]:
        """Tokens with their times, by greedy decoding or beam search, at any temperature. With `num_answers` > 1 the
        best `beams` answers are the `alternatives`, without times. `bias` favours phrases with at least `BIASED`
        beams."""
        beams = max(beams, BIASED) if bias else beams
        with torch.no_grad():
            states, frames = self.encode(**inputs)
            if beams == 1:
                rankings: Sequence[Sequence[Path | Hypothesis]] = [
                    [path] for path in greedy(self, states, frames, max_new_tokens)
                ]
            else:
                rankings = search(self, states, frames, max_new_tokens, beams, bias)
            if num_answers > 1:
                return [ranked([GenerationOutput(list(h.ids), list(h.log_probs)) for h in few]) for few in rankings]
            paths = [few[0] for few in rankings]
            seconds = self._token_seconds(inputs, [path.spans for path in paths])
        return [GenerationOutput(list(path.ids), list(path.log_probs), spans) for path, spans in zip(paths, seconds)]

    def confidence_map(self) -> list[float] | None:
        return self.calibration.tolist()

    @torch.no_grad()
    def align_tokens(
        self, inputs: dict[str, Tensor], ids: Sequence[int]
    ) -> tuple[list[float], list[tuple[float, float]]] | None:
        """Log-probabilities of known tokens of one item on the most probable path that writes them, and the first and
        the last second of each, as `generate` gives them. None where no path does. `WILDCARD` is any sound."""
        states, frames = self.encode(**inputs)
        targets = torch.tensor([list(ids)], dtype=torch.long, device=states.device)
        count = torch.tensor([len(ids)], device=states.device)
        arguments = self.joint_arguments(states, frames, targets[targets != WILDCARD][None], count)
        path = best_path(**arguments | {"targets": targets})
        if path is None:
            return None
        ends = [(end - 1, end) for _, end in path.spans]  # a wildcard is longer than its first frame
        (seconds,) = self._token_seconds(inputs, [[*path.spans, *ends]])
        pairs = zip(ids, seconds, seconds[len(ids) :])
        return path.log_probs, [(a[0], b[1] if token == WILDCARD else a[1]) for token, a, b in pairs]

    def _token_seconds(
        self, inputs: dict[str, Tensor], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[tuple[float, float]]]:
        """The first and the last second of the tokens of each item, from the frames that they were written at."""
        if self.times_head is None:
            return [self.seconds(row) for row in spans]
        hidden, frames = self.frames(**inputs)
        return [
            self.seconds(row, self.word_distances(item[:n])) for row, item, n in zip(spans, hidden, frames.tolist())
        ]

    def word_distances(self, hidden: Tensor) -> Tensor | None:
        """Frames [T, 2] since the word at each of the encoder's frames [T, width] began and until it ends, where there
        is a times head."""
        return None if self.times_head is None else self.times_head(hidden).float().cpu()

    def seconds(
        self, spans: Sequence[tuple[float, float]], distances: Tensor | None = None, first: int = 0
    ) -> list[tuple[float, float]]:
        """The first and the last second of tokens that were written at these frames; with the `distances` of the frames
        from `first` on, the times of their words."""
        before, after = (0.0, 0.0) if self.delays is None else self.delays.tolist()
        spans = spans if distances is None else _of_words(spans, distances, first)
        return [(start * self.frame_seconds + before, end * self.frame_seconds + after) for start, end in spans]


def _of_words(spans: Sequence[tuple[float, float]], distances: Tensor, first: int) -> list[tuple[float, float]]:
    """When the word is said that is said where a token was written: the median of what the times head says at three
    frames towards the middle of the word, as at its edge a frame may be its neighbour's."""
    middles, inwards = torch.arange(len(distances)) + first + 0.5, torch.arange(3)
    at = torch.tensor([frame - first for frame, _ in spans], dtype=torch.long)[:, None]
    starts = (middles - distances[:, 0])[(at + inwards).clamp(max=len(distances) - 1)].median(1).values
    ends = (middles + distances[:, 1])[(at - inwards).clamp(min=0)].median(1).values
    return list(zip(starts.tolist(), ends.tolist()))


class Joint(nn.Module):
    """Logits from a frame and what was written before it (Graves et al. 2013)."""

    def __init__(self, hidden: int, classes: int):
        super().__init__()
        self.head = nn.Linear(hidden, classes)

    def forward(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        return self.head(torch.tanh(encoder + predictor))


class Predictor(nn.Module):
    """GRU over the tokens written so far: ids [B, U] -> [B, U, hidden]."""

    def __init__(self, classes: int, hidden: int, layers: int, dropout: float):
        super().__init__()
        self.embed = nn.Embedding(classes, hidden)
        self.gru = nn.GRU(hidden, hidden, layers, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(hidden, hidden)

    def forward(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        output, hidden = self.gru(self.embed(tokens), None if state is None else state[0])
        return self.project(self.dropout(output)), (hidden,)


class EncoderTransducer(TransducerModel):
    """One of the encoders of `Geometry` with a GRU and a joint, and perhaps a CTC head.

    Parts: `encoder`, `project`, `predictor`, `joint`, `ctc_head`, `times_head`. An encoder without any trainable
    parameter stays in evaluation mode (no dropout).
    """

    blank = 0

    def __init__(
        self,
        encoder: Any,
        shape: Geometry,
        predictor: Predictor,
        joint: Joint,
        ctc_classes: int | None = None,
        times: bool = False,
    ):
        super().__init__()
        self.encoder, self.shape, self.predictor, self.joint = encoder, shape, predictor, joint
        width = encoder.config.hidden_size
        self.project = nn.Linear(width, joint.head.in_features)
        self.ctc_head = nn.Linear(width, ctc_classes) if ctc_classes else None
        self.times_head = nn.Linear(width, 2) if times else None
        self.frame_seconds = 1 / shape.frame_rate
        self.register_buffer("calibration", torch.tensor([1.0, 0.0, 0.0]))
        self.register_buffer("delays", torch.zeros(2))

    def train(self, mode: bool = True) -> EncoderTransducer:
        super().train(mode)
        if not any(p.requires_grad for p in self.encoder.parameters()):
            self.encoder.eval()
        return self

    def encode(self, features: Tensor, lengths: Tensor, **conditions: Tensor) -> tuple[Tensor, Tensor]:
        hidden, frames = self.frames(features, lengths, **conditions)
        return self.project_encoder(hidden), frames

    def project_encoder(self, hidden: Tensor) -> Tensor:
        states: Tensor = self.project(hidden)
        return states

    def predict(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        output: tuple[Tensor, State] = self.predictor(tokens, state)
        return output

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        hypotheses: dict[str, Any] | None = None,
        **options: Tensor,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the losses: `rnnt`, with a CTC head `ctc` and with a times head `times`. `targets` [B, U] are
        right-padded; `options` has `ctc_rows`, `ctc_targets` and `ctc_target_lengths`, and `word_times` [B, T, 2]: the
        frames since the word at each frame began and until it ends, -100 where none is known."""
        hidden, frames = self.frames(features, lengths, options.get("chunks"))
        states = self.project_encoder(hidden)
        losses = {"rnnt": self.joint_arguments(states, frames, targets, target_lengths)}
        if hypotheses is not None:
            losses["hypotheses"] = self.rescore(states, frames, **hypotheses)
        if self.ctc_head is not None:
            losses["ctc"] = self.ctc_arguments(hidden, frames, options)
        if self.times_head is not None:
            losses["times"] = {"logits": self.times_head(hidden), "targets": options["word_times"]}
        return losses

    @torch.no_grad()
    def ctc_classes(self, features: Tensor, lengths: Tensor) -> list[list[int]]:
        """See `best_ctc_classes`."""
        return self.best_ctc_classes(features, lengths)
