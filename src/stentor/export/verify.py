"""Verification of exports: each is loaded back and compared with the model that it was made from.

Recognisers are compared by what they write and by their losses on the clips, models that label frames by their main
metric and their losses, models that speak by their losses, the codec tokens of a few utterances and how their codec
sounds, models over `LARGE` parameters by their tensors, which needs no second model in memory.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from stentor.engine.evaluate import EvalSet
from stentor.engine.trainer import Trainer
from stentor.export.probe import (
    FULL,
    HALF,
    Agreement,
    Different,
    ModelOutputs,
    Probe,
    losses_of,
    make_probe,
    records,
    spread,
)
from stentor.inference.load import load
from stentor.inference.model import Model
from stentor.losses.base import measured
from stentor.models.base import Bundle
from stentor.tasks.base import Task
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.language import Language
from stentor.tasks.speak.task import Speak
from stentor.tasks.transcribe import Transcribe

LARGE = 2_000_000_000
"""Parameters above which an export is compared by its tensors: a second copy would not fit beside the first."""


def check_run(
    trainer: Trainer, place: Path, weights: Mapping[str, torch.Tensor], sets: Sequence[EvalSet]
) -> dict[str, Any]:
    """Load `place/export` back and compare it with the model in memory; one line is said. Answers the entry of
    results.json.

    `weights` are those that the export was made of. A sharded model cannot run on one process: it is compared by what
    it answered when the sets were scored (`place/predictions`). Called by the main process alone. Raises `Different`,
    after the folder has got another name, so that it is not taken for the result.
    """
    folder = place / "export"
    try:
        agreement = _check_run(trainer, place, weights, sets)
    except Different as error:
        wrong = place / "export-wrong"
        replace(folder, wrong)
        raise Different(
            f"The export does not do what the trained model does: {error}. It is kept as {wrong} and should not be "
            "used. Training is done and saved: please report this with the versions that `stentor doctor` prints."
        ) from error
    trainer.say(f"{str(agreement)[0].upper()}{str(agreement)[1:]}.")
    return agreement.as_dict()


def _check_run(
    trainer: Trainer, place: Path, weights: Mapping[str, torch.Tensor], sets: Sequence[EvalSet]
) -> Agreement:
    bundle, task, device = trainer.bundle, trainer.task, trainer.accelerator.device
    if reason := not_comparable(task, bundle):
        return Agreement(f"export not checked: {reason}")
    sharded = trainer.backend.sharded
    if num_parameters(bundle) > LARGE or (sharded and task.audible):
        why = "the model is sharded" if sharded else ""
        return same_tensors(bundle, weights, place / "export", why)
    outputs = _recorded_outputs(place / "predictions", sets, task) if sharded else {}
    cuts = [item.cut for s in sets for items in s.plan.epoch(0) for item in items]
    examples, references = spread(task, bundle, [c for c in cuts if c.id in outputs or not sharded])
    if sharded and not examples:
        return Agreement("export not checked: the model is sharded and no answers of it are at hand")
    losses = {} if sharded else measured(trainer.losses)
    probe = make_probe(task, bundle, examples, losses, references)
    if probe is None:
        return Agreement("export not checked: there is no evaluation set to take clips from")
    low = trainer.accelerator.mixed_precision != "no" and sharded
    half = low or any(p.dtype != torch.float32 for p in bundle.model.parameters())
    autocast = trainer.accelerator.autocast if half else nullcontext
    original = ModelOutputs([outputs[e.id] for e in examples]) if sharded else probe.run(bundle, autocast)
    export, export_device = _load_export(bundle, place / "export", device)
    copy = probe.run(export, autocast if export_device == device else nullcontext)
    return probe.compare(original, copy, HALF if half or export_device != device else FULL)


def _recorded_outputs(folder: Path, sets: Sequence[EvalSet], task: Task) -> dict[str, dict[str, Any]]:
    """Outputs without sampling from when the sets were scored, by id; nothing where whole recordings were, of
    which a probe takes pieces."""
    outputs: dict[str, dict[str, Any]] = {}
    if not isinstance(task, Transcribe):
        return outputs
    for eval_set in sets:
        for line in (folder / f"{eval_set.name}.jsonl").read_text(encoding="utf-8").splitlines():
            prediction = json.loads(line)
            if prediction["output"]["temperature"] == task.checks.temperatures[0]:
                outputs[prediction["id"]] = prediction["output"]
    return outputs


def _load_export(bundle: Bundle, folder: Path, device: torch.device) -> tuple[Bundle, torch.device]:
    """The export, on the device where there is room for it, else on the CPU."""
    export_device = device
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        if free < 3 * 4 * num_parameters(bundle):  # with room to run it
            export_device = torch.device("cpu")
    try:
        if any(not p.is_floating_point() for p in bundle.model.parameters()):  # in 8 or 4 bits, as it was trained
            export = type(bundle.family).load(folder, trainable=True)
            export.model.to(export_device).eval()
        else:
            export = load(folder, str(export_device)).bundle
    except Exception as error:  # whatever a folder that cannot be read makes the libraries say
        raise Different(f"it cannot be loaded ({type(error).__name__}: {error})") from error
    return export, export_device


def probe_model(model: Model) -> tuple[Probe, ModelOutputs] | None:
    """A probe for the copies of a model, and what the model itself makes of it; None where there are no clips."""
    losses = losses_of(model)
    examples, references = records(model)
    losses = {name: loss.unregularised() for name, loss in losses.items()}
    probe = make_probe(model.task, model.bundle, examples, losses, references)
    return None if probe is None else (probe, probe.run(model.bundle))


def check_copy(probe: Probe, original: ModelOutputs, folder: Path) -> Agreement:
    """Compare a written copy with what its model made of the probe. Raises `Different`."""
    try:
        copy = load(folder)
    except Exception as error:
        raise Different(f"the copy cannot be loaded ({type(error).__name__}: {error})") from error
    half = any(p.dtype != torch.float32 for p in copy.bundle.model.parameters())
    return probe.compare(original, probe.run(copy.bundle), HALF if half else FULL)


def same_tensors(bundle: Bundle, weights: Mapping[str, torch.Tensor], folder: Path, why: str = "") -> Agreement:
    """Whether the tensors in the files of an export are those in memory, whatever their names.

    Layers into which adapters were folded and those kept in 8 or 4 bits are computed again for an export: there the
    numbers are looked at, not compared. Raises `Different`.
    """

    def digest(tensor: torch.Tensor) -> str:
        data = tensor.detach().cpu().contiguous()
        facts = hashlib.blake2b(str((data.dtype, tuple(data.shape))).encode(), digest_size=16)
        facts.update(data.view(-1).view(torch.uint8).numpy().data)
        return facts.hexdigest()

    written: dict[str, str] = {}
    types = set()
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                    tensor = tensors.get_tensor(name)
                    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                        raise Different(f"{name} in {file.name} holds NaN or infinite numbers")
                    written[digest(tensor)] = name
                    types.add(tensor.dtype)
        except (SafetensorError, OSError) as error:
            raise Different(f"{file.name} cannot be read ({error})") from error
    known = set()
    for tensor in weights.values():
        kinds = types if tensor.is_floating_point() else {tensor.dtype}
        known |= {digest(tensor.to(kind)) for kind in kinds}
    recomputed = sum(".lora_A." in name for name in weights) + sum(not t.is_floating_point() for t in weights.values())
    changed = [name for key, name in written.items() if key not in known]
    if not written or len(changed) > recomputed:
        raise Different(f"{len(changed)} of its {len(written)} tensors are not those in memory, such as {changed[:1]}")
    return Agreement(
        f"export checked by its tensors ({len(written) - len(changed)} are those in memory"
        + (f", {len(changed)} were computed again" if changed else "")
        + f"): {why or f'a model of {num_parameters(bundle) / 1e9:.1f} billion parameters is not loaded twice'}"
    )


def num_parameters(bundle: Bundle) -> int:
    """Numbers in the model, those that lie on other processes included."""
    return sum(p.numel() for p in bundle.model.parameters())


def not_comparable(task: Task, bundle: Bundle) -> str | None:
    """Reason why a model's exports cannot be compared by their outputs; None when they can."""
    if not isinstance(task, Transcribe | Diarize | Language | Speak):
        return f"nothing is known to compare models for the task {task.type} by"
    if not bundle.family.loadable():
        return f"the family {bundle.family.type} has no `load`"
    return None


def replace(folder: Path, to: Path) -> None:
    """Give a folder another name, which an earlier one of its kind may have."""
    shutil.rmtree(to, ignore_errors=True)
    folder.rename(to)
