"""ONNX graphs of CTC models: of the family `ctc`, and of the family `transformer` with a CTC head alone.

features.onnx     audio to features, see `frontend`
model.onnx        audio_signal [B, mels, T], [B, T, size] or [B, T], length int64 [B] (in steps of T) -> logprobs
                  [B, frames, classes], lengths int64 [B]; batch and time are free
onnx_config.json  sizes, names and units

Classes that write nothing count as blank. onnx-asr 0.12 reads the folder of a model with Parakeet's features as
`nemo-conformer-ctc`: model.onnx, vocab.txt, and `features_size` and `subsampling_factor` in config.json.
"""

import shutil
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.data.batch import Example
from stentor.data.trained_speech import with_room
from stentor.export.onnx.exporter import GraphExporter, run_program, usage_of, write_facts
from stentor.export.onnx.frontend import write_frontend
from stentor.export.onnx.trace import trace
from stentor.export.program import program_facts, write_program
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.ctc.build import builder
from stentor.models.ctc.modeling import CTCModel
from stentor.models.ctc.processor import CTCProcessor
from stentor.models.decoding.ctc import decode
from stentor.models.decoding.viterbi import viterbi
from stentor.models.pretrained.weights import read_json, standalone, write_json
from stentor.models.text.spelling import Characters
from stentor.models.transformer.modeling import TransformerModel
from stentor.tasks.transcribe import within

BLANK, SPACE = "<blk>", "\u2581"
IMPOSSIBLE = -1e9
"""Log-probability of classes that count as blank."""
USAGE = """\
Stentor runs them too: `stentor transcribe {folder} speech.wav`. Models with Parakeet's features also run in onnx-asr:
`onnx_asr.load_model("nemo-conformer-ctc", "{folder}")`.
"""


def log_probs(model: CTCModel | TransformerModel, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [B, frames, classes] and frames [B] of a batch as `collate` makes it."""
    if isinstance(model, CTCModel):
        return model.log_probs(features, lengths)
    hidden, frames = model.encode(features, lengths)
    return model.ctc_log_probs(hidden), frames


class CTCGraph(nn.Module):
    """The model, each frame `repeat` times; what writes nothing counts as blank."""

    def __init__(self, bundle: Bundle, repeat: int = 1):
        super().__init__()
        self.model, self.repeat = bundle.model, repeat
        written = units(bundle)
        self.blank = blank_of(bundle)
        self.register_buffer("silent", None if written is None else torch.tensor([unit == "" for unit in written]))

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        scores, frames = log_probs(self.model, audio_signal, length)
        if isinstance(silent := self.silent, Tensor):
            blank = scores.masked_fill(~silent, IMPOSSIBLE).amax(-1, keepdim=True)
            scores = scores.masked_fill(silent, IMPOSSIBLE)
            scores = torch.cat([scores[..., : self.blank], blank, scores[..., self.blank + 1 :]], -1)
        if self.repeat > 1:
            scores = scores[:, :, None].expand(-1, -1, self.repeat, -1).flatten(1, 2)
        return scores, frames * self.repeat


def blank_of(bundle: Bundle) -> int:
    """The class of the blank."""
    return bundle.model.blank if isinstance(bundle.model, CTCModel) else 0


def classes_of(bundle: Bundle) -> int:
    """Number of classes, blank included."""
    model = bundle.model
    return int(model.recogniser.config.vocab_size if isinstance(model, CTCModel) else model.ctc_head.out_features)


def units(bundle: Bundle) -> list[str] | None:
    """Text that each class adds, spaces included; empty for those that write nothing. None where a text is more
    than its classes one after the other."""
    processor, count = bundle.processor, classes_of(bundle)
    if not isinstance(processor, CTCProcessor):
        alphabet = processor.ctc
        return ["", *((" " if alphabet.by_words else "") + unit for unit in alphabet.units)]
    if isinstance(processor.spelling, Characters):
        return [processor.spelling.texts.get(i, "") for i in range(count)]
    tokenizer = processor.tokenizer
    special = {*tokenizer.all_special_ids, bundle.model.blank}
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    written = ["" if i in special else piece.replace(SPACE, " ") for i, piece in enumerate(pieces)]
    written += [""] * (count - len(written))
    said = [i for i, unit in enumerate(written) if unit]
    pairs = [[i, j] for i, j in zip(said, [*said[7:], *said[:7]])]
    same = all(processor.decode(ids).strip() == "".join(written[i] for i in ids).strip() for ids in [said, *pairs])
    return written if same else None


def write_graph(bundle: Bundle, path: Path) -> list[str]:
    """Write model.onnx of `CTCGraph`; returns the names of its outputs."""
    noise = [0.1 * torch.randn(n, generator=torch.Generator().manual_seed(0)).numpy() for n in (21_000, 17_000)]
    inputs = bundle.processor.collate([Example(str(i), clip, "") for i, clip in enumerate(noise)], labels=False).inputs
    features, outputs = inputs["features"], ["logprobs", "lengths"]
    own = isinstance(bundle.model, TransformerModel) and bundle.model.frontend is None
    axes = {"audio_signal": (0, 1 if own else features.dim() - 1), "length": (0,)}
    given = {"audio_signal": features, "length": inputs["lengths"]}
    trace(CTCGraph(bundle), given, axes, outputs, path, "encoder with its CTC head")
    return outputs


def write_symbols(path: Path, written: Sequence[str], blank: int) -> None:
    """Write a line `SYMBOL CLASS` for each class, as onnx-asr and sherpa-onnx read them; a space is U+2581."""
    silent = [BLANK if i == blank else f"<{i}>" for i in range(len(written))]
    lines = [f"{unit.replace(' ', SPACE) or silent[i]} {i}\n" for i, unit in enumerate(written)]
    path.write_text("".join(lines), encoding="utf-8")


def save_configs(bundle: Bundle, folder: Path) -> None:
    """Write what `Family.save` writes, but the weights."""
    if isinstance(bundle.model, CTCModel):
        builder.save_configs(bundle, folder)
    else:
        bundle.family.save(Bundle(bundle.model, bundle.processor, standalone(bundle.family)), {}, folder)
        (folder / "model.safetensors").unlink(missing_ok=True)


def outputs_with_times(model: Model, examples: Sequence[Example], room: bool = True) -> list[dict[str, Any]]:
    """Answers of the model in memory with the word times of its likeliest path; `room`: with as much quiet around
    speech as in training, which only programs of ours give clips."""
    bundle, answers, processor = model.bundle, [], model.bundle.processor
    for example in examples:
        [given], [earlier] = with_room(bundle.traits.trained_speech if room else None, processor, [example])
        inputs = processor.collate([given], labels=False).inputs
        with torch.no_grad():
            scores, frames = log_probs(bundle.model, inputs["features"], inputs["lengths"])
        answers.append(answer_of(model, scores, frames, example, earlier))
    return answers


def answer_of(model: Model, scores: Tensor, frames: Tensor, example: Example, earlier: float = 0.0) -> dict[str, Any]:
    """Answer by log-probabilities [1, T, classes] of `frames` [1]; `earlier`: seconds of quiet before the clip."""
    processor, blank = model.bundle.processor, blank_of(model.bundle)
    [output] = decode(scores, frames, blank)
    [path] = viterbi([scores[0, : frames[0]]], [output.ids], blank)
    seconds = len(example.audio) / processor.sample_rate  # type: ignore[arg-type]
    edges = () if path is None else path.labels(len(output.ids))
    times = [[within(t * processor.frame_seconds, seconds, earlier) for t in edge.tolist()] for edge in edges]
    task = model.for_transcription()
    return task.answer(processor, output.ids, output.log_probs, seconds, spans=list(zip(*times)))


class CTCOnnx(GraphExporter):
    """Graphs of a CTC model with a program that runs them, read by onnx-asr where it has the features."""

    usage = usage_of("python transcribe.py speech.wav --words", USAGE)

    def refusal(self, bundle: Bundle) -> str | None:
        return refusal(bundle)

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle, processor, written = model.bundle, model.bundle.processor, units(model.bundle)
        save_configs(bundle, folder)
        path = folder / "model.onnx"
        graphs = {"features": write_frontend(processor, folder)}
        graphs["encoder"] = {"file": path.name, "outputs": write_graph(bundle, path)}
        facts = {
            **program_facts(processor),
            "frame_seconds": processor.frame_seconds,
            "blank": blank_of(bundle),
            "units": written,
            "tokens": None if written is None else "tokens.txt",
        }
        write_facts(folder, "ctc", graphs, facts)
        if written is not None:
            write_symbols(folder / "tokens.txt", written, blank_of(bundle))
            if isinstance(processor, CTCProcessor) and processor.shape.log_mel == "parakeet":
                shutil.copyfile(folder / "tokens.txt", folder / "vocab.txt")
                factor = prod(stride for _, stride, _ in processor.shape.convs)
                facts = {"features_size": processor.shape.mels, "subsampling_factor": factor}
                write_json(folder / "config.json", {**read_json(folder / "config.json"), **facts})
        write_program(folder, "ctc")

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return outputs_with_times(model, examples)

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return run_program(folder, examples)


def refusal(bundle: Bundle) -> str | None:
    """Reason why a model has no graphs of this kind."""
    if isinstance(bundle.model, CTCModel) or bundle.family.kind == "encoder":
        return None
    return f"of the family transformer only models of the kind encoder are exported, not {bundle.family.kind}"
