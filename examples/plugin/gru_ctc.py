"""A plug-in for Stentor in one file: a model family, a loss and a callback.

    stentor train gru_ctc.yaml --plugin gru_ctc.py

or, installed once (`pip install ./examples/plugin`), without `--plugin`: the entry point group `stentor.plugins` in
pyproject.toml names this module, and importing it registers the three classes below under their `type`.

The family is the classic small recogniser: two strided convolutions over log-mel frames, a bidirectional GRU and one
linear layer, trained with CTC (Graves et al. 2006). It has no language model; its transcript is the most likely path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from stentor.extend import (
    Batch,
    Bundle,
    Callback,
    ConfigError,
    CTCAlphabet,
    CTCLoss,
    Example,
    Family,
    GenerationOutput,
    Processor,
    Recognizer,
    SpecAugment,
    TaskRequirements,
    WhisperMel,
    ctc_frames,
)

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.extend import Trainer

STRIDE = 4  # log-mel frames (10 ms) per output frame, of two convolutions with stride 2
SHORTEST = 1600  # samples; silence is added to shorter clips


class GruCtc(Family):
    """Convolutions, a bidirectional GRU and CTC over the characters of the training transcripts."""

    type: Literal["gru_ctc"] = "gru_ctc"
    mels: int = Field(80, ge=1)
    """Log-mel bins."""
    width: int = Field(128, ge=1)
    """Channels of the convolutions and units of the GRU in each direction."""
    layers: int = Field(2, ge=1)
    """Layers of the GRU."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout before each layer of the GRU and before the last linear layer."""

    tasks: ClassVar[tuple[str, ...]] = ("transcribe",)

    def build(self, requirements: TaskRequirements) -> Bundle:
        if requirements.terms != ("ctc",):
            raise ConfigError(
                "A model of type gru_ctc is trained with one loss term named `ctc`: write `losses: {ctc: ctc}` "
                "or `losses: {ctc: smoothed_ctc}`."
            )
        if self.init is not None:
            before = GruCtc.load(Path(self.init))
            bundle = self._assemble(before.processor.alphabet.units)
            try:
                bundle.model.load_state_dict(before.model.state_dict())
            except RuntimeError:
                raise ConfigError(f"model.init: {self.init} has other sizes than this model.") from None
            return bundle
        texts: Iterable[str] = requirements.texts() if requirements.texts else ()
        return self._assemble("".join(sorted(set().union(*texts))))

    def _assemble(self, characters: str) -> Bundle:
        model = GruCtcModel(self.mels, self.width, self.layers, self.dropout, classes=len(characters) + 1)
        return Bundle(model, GruCtcProcessor(self.mels, characters), self)

    def save(self, bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file({n: t.contiguous() for n, t in state.items()}, folder / "model.safetensors", {"format": "pt"})
        # `model_type` is how Stentor finds the family of an export folder again.
        config = {"model_type": self.type, "family": self.model_dump(exclude={"init"})}
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        bundle.processor.save(folder)

    def save_merged(self, bundle: Bundle, folder: Path) -> None:
        self.save(bundle, {n: t.cpu() for n, t in bundle.model.state_dict().items()}, folder)

    @classmethod
    def load(cls, folder: Path, trainable: bool = False) -> Bundle:
        from safetensors.torch import load_file

        family = cls.model_validate(json.loads((folder / "config.json").read_text("utf-8"))["family"])
        settings = json.loads((folder / GruCtcProcessor.file).read_text("utf-8"))
        bundle = family._assemble(settings["characters"])
        bundle.model.load_state_dict(load_file(folder / "model.safetensors"))
        return bundle


class GruCtcProcessor(Processor):
    """Examples to log-mel frames and character classes; `decode` and the rest serve the task transcribe."""

    sample_rate = 16000
    file = "preprocessor_config.json"
    eos_id = -1  # CTC has no end token
    max_seconds = None  # clips may be of any length

    def __init__(self, mels: int, characters: str):
        self.mel = WhisperMel(mels)
        self.alphabet = CTCAlphabet(characters)

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Output frames of an item."""
        return frames_after(max(round(seconds * self.sample_rate), SHORTEST) // 160)

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        """Return why an example cannot be in a batch. Records are asked for before training, too, with silence as their
        audio, and those with a reason are dropped and counted: say what to do."""
        needed = ctc_frames(self.alphabet.encode(example.text or "")) if labels else 0
        frames = frames_after(max(len(example.audio), SHORTEST) // 160)
        if not labels or 0 < needed <= frames:
            return super().refusal(example, labels)
        return "text_too_long", f"{example.id}: its text needs {needed} frames of {frames}: leave it out."

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """`features` [B, mels, T] and `lengths` [B]; with `labels` also `targets` (all clips' classes end to end) and
        `target_lengths` [B]. What `refusal` names is left out of training, and listed."""
        reasons = [self.refusal(e, labels) for e in examples]
        dropped = [(e.id, *reason) for e, reason in zip(examples, reasons) if reason]
        examples = [e for e, reason in zip(examples, reasons) if not reason]
        classes = [self.alphabet.encode(e.text or "") if labels else [] for e in examples]
        if not examples:
            return Batch({}, {}, [], dropped=dropped)
        audio = [torch.as_tensor(e.audio) for e in examples]
        features, lengths = self.mel([functional.pad(a, (0, max(0, SHORTEST - len(a)))) for a in audio])
        for row, length, example in zip(features, lengths.tolist(), examples):
            if "spec_augment" in example.extra and example.rng is not None:
                masks = SpecAugment.model_validate(example.extra["spec_augment"])
                row[:, :length] = masks.apply(row[:, :length].T, example.rng).T
        inputs = {"features": features, "lengths": lengths}
        if labels:
            inputs["targets"] = torch.tensor([c for part in classes for c in part])
            inputs["target_lengths"] = torch.tensor([len(c) for c in classes])
        outputs = [frames_after(n) for n in lengths.tolist()]
        return Batch(
            inputs,
            counts={"ctc": sum(map(len, classes))},
            ids=[e.id for e in examples],
            seconds=sum(len(a) for a in audio) / self.sample_rate,
            tokens=sum(outputs),
            num_positions=max(outputs) * len(outputs),
            dropped=dropped,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the characters of classes that `generate` has already merged."""
        return "".join(self.alphabet.units[i - 1] for i in ids)

    def max_new_tokens(self, seconds: float) -> int:
        """Return the maximum number of characters: one per output frame."""
        return frames_after(round(seconds * 100))

    def save(self, folder: Path) -> None:
        settings = {"mels": self.mel.n_mels, "characters": self.alphabet.units}
        (folder / self.file).write_text(json.dumps(settings, indent=1, ensure_ascii=False), encoding="utf-8")


class GruCtcModel(nn.Module, Recognizer):
    """Log-probabilities of characters (blank is class 0), 25 times a second. Its `capabilities` are those of a plain
    recognizer: it writes text and nothing else."""

    def __init__(self, mels: int, width: int, layers: int, dropout: float, classes: int):
        super().__init__()
        self.front = nn.ModuleList(
            nn.Conv1d(channels, width, kernel_size=5, stride=2, padding=2) for channels in (mels, width)
        )
        self.dropout = dropout
        self.gru = nn.GRU(
            width, width, layers, batch_first=True, bidirectional=True, dropout=dropout if layers > 1 else 0.0
        )
        self.head = nn.Linear(2 * width, classes)

    def log_probs(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T // 4, classes] and lengths [B] from log-mel `features` [B, mels, T]. A clip's result does not depend on
        what it is padded with or batched with."""
        hidden = features
        for convolution in self.front:
            inside = torch.arange(hidden.shape[2], device=hidden.device) < lengths[:, None]
            hidden = functional.gelu(convolution(hidden * inside[:, None]))
            lengths = (lengths + 1) // 2
        hidden = functional.dropout(hidden.transpose(1, 2), self.dropout, self.training)
        rows = pack_padded_sequence(hidden, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.gru(rows)[0], batch_first=True)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        return self.head(hidden).float().log_softmax(-1), lengths

    def forward(
        self, features: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
    ) -> dict[str, dict[str, Any]]:
        """Return the keyword arguments of `sum` of the loss term `ctc`."""
        log_probs, frames = self.log_probs(features, lengths)
        prediction = {"log_probs": log_probs.transpose(0, 1), "lengths": frames}
        return {"ctc": {**prediction, "targets": targets, "target_lengths": target_lengths}}

    def generate(
        self, inputs: dict[str, Tensor], max_new_tokens: list[int], beams: int = 1, **_: Any
    ) -> list[GenerationOutput]:
        """Return classes and log-probabilities along the most likely path, with repeats merged and without blanks. CTC
        frames are independent of each other, so temperatures and end tokens have no effect."""
        if beams != 1:
            raise ConfigError("A model of type gru_ctc decodes greedily: set `task.beams: 1`.")
        log_probs, lengths = self.log_probs(inputs["features"], inputs["lengths"])
        best, path = log_probs.max(-1)
        outputs = []
        for row, values, length, most in zip(path.tolist(), best.tolist(), lengths.tolist(), max_new_tokens):
            starts = [t for t in range(length) if row[t] != 0 and (t == 0 or row[t] != row[t - 1])][:most]
            outputs.append(GenerationOutput([row[t] for t in starts], [values[t] for t in starts]))
        return outputs


def frames_after(frames: int) -> int:
    """Return the number of output frames for a number of log-mel frames."""
    return -(-frames // STRIDE)


class SmoothedCTC(CTCLoss):
    """CTC with label smoothing: a share of the loss pulls every frame towards even probabilities (Kim et al. 2018)."""

    type: Literal["smoothed_ctc"] = "smoothed_ctc"  # type: ignore[assignment]
    smoothing: float = Field(0.05, ge=0, lt=1)
    """Share of the loss that is the cross entropy with even probabilities, summed over frames."""

    def sum(self, log_probs: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        """Return a scalar; arguments as for CTC. A sum, never a mean: only the engine divides."""
        path = super().sum(log_probs, lengths, targets, target_lengths)
        inside = torch.arange(len(log_probs), device=log_probs.device)[:, None] < lengths
        even = -(log_probs.float().mean(-1) * inside).sum()
        return (1 - self.smoothing) * path + self.smoothing * even


class WeightGrowth(Callback):
    """Log the norm of the weights of each part relative to the start of training: `weight_growth/PART`."""

    type: Literal["weight_growth"] = "weight_growth"
    every: int = Field(100, ge=1)
    """Steps between two rows."""

    _start: dict[str, float] = PrivateAttr(default_factory=dict)

    def on_start(self, trainer: Trainer) -> None:
        self._start = self._start or self._norms(trainer)  # a resumed run keeps its initial norms

    def on_step(self, trainer: Trainer) -> None:
        if trainer.step % self.every == 0:
            norms = self._norms(trainer)
            trainer.log({f"weight_growth/{part}": norm / self._start[part] for part, norm in norms.items()})

    @staticmethod
    @torch.no_grad()
    def _norms(trainer: Trainer) -> dict[str, float]:
        parts = trainer.bundle.parts().items()
        norms = {name: sum(float(p.square().sum()) for p in part.parameters()) ** 0.5 for name, part in parts}
        return {name: norm for name, norm in norms.items() if norm > 0}

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state["start"]
