"""`stentor export`: a copy of a finished model for others, compared with the original before it is handed over."""

import filecmp
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor.commands.export import onnx_graphs
from stentor.commands.export.probe import COARSE, FULL, HALF, Different, ModelOutputs, clips
from stentor.commands.export.verify import (
    LARGE,
    check_copy,
    ct2_transcripts,
    not_comparable,
    num_parameters,
    probe_model,
    replace,
    same_tensors,
)
from stentor.commands.train_options import ExportOptions
from stentor.errors import ConfigError, require
from stentor.inference.load import find_export, load
from stentor.inference.speak.voice import VOICES
from stentor.publish.onnx import add_usage

FORMATS = ("hf", "onnx", "ct2")
FACTS = ("training_config.json", "train_results.json", "eval_results.json", "README.md")
"""Facts of an export about its training."""


def export_model(options: ExportOptions) -> None:
    """Export by the options of the verb. Raises as `export`, and ConfigError for options that do not go together."""
    if options.onnx and options.format not in ("hf", "onnx"):
        raise ConfigError("--onnx is short for --format onnx: leave out one of them.")
    format = "onnx" if options.onnx else options.format
    print(export(options.model, options.to, options.merge, format, options.quantization))


def export(model: str, to: Path, merge: bool, format: str, quantization: str | None = None) -> str:
    """Write a copy of a model for others into `to`; what it was compared by is said in the answer.

    `format`: `hf` (the model's own export, with adapters folded in when `merge` is set), `onnx`, `ct2` (CTranslate2),
    both with their weights in `quantization`, or several with commas: then graphs go into `to/onnx` and CTranslate2's
    files into `to/ct2`. Everything is loaded back and compared with the model before it appears in `to`: raises
    `StentorError` when it differs, ConfigError for formats that the model has not.
    """
    formats = [f.strip() for f in format.split(",")]
    if unknown := [f for f in formats if f not in FORMATS]:
        raise ConfigError(
            f"--format {unknown[0]} is not known; known are {', '.join(FORMATS)}, or several with commas."
        )
    if quantization is not None and not {"ct2", "onnx"} & set(formats):
        raise ConfigError("--quantization is for ONNX and CTranslate2: add --format onnx or ct2, or leave it out.")
    if quantization is not None and "onnx" in formats:
        onnx_graphs.check_kind(quantization)
    source = find_export(model)
    check_empty(to)
    if (source / "onnx_config.json").is_file() and (merge or formats != ["hf"]):
        raise ConfigError(f"{model} is an ONNX export already: copy it, or export the model that it was made from.")
    folders = {f: to if formats == [f] or f == "hf" else to / f for f in formats}
    sentences = []
    if "onnx" in formats:
        checked = _export_onnx(model, source, folders["onnx"], quantization)
        sentences.append(f"ONNX graphs are in {folders['onnx']}, checked with onnxruntime on {checked}.")
    if "ct2" in formats:
        checked = _export_ct2(model, source, folders["ct2"], quantization)
        sentences.append(f"CTranslate2's model is in {folders['ct2']}; {checked}.")
    if "hf" in formats:
        checked = _merge(model, source, to) if merge else _copy(model, source, to)
        sentences.insert(0, f"Exported to {to}{', whole: it needs no base model' if merge else ''}; {checked}.")
    return " ".join(sentences)


def check_empty(to: Path) -> None:
    """Raise ConfigError for a folder that holds something."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not empty: choose another folder, so that nothing is overwritten.")


@contextmanager
def written(to: Path) -> Iterator[Path]:
    """A folder to write into, whose files are moved into `to` at the end; after an error nothing of it is left. A copy
    that does something else is kept under another name: raises `Different`, with that name."""
    # In the folder that will hold it: the same disk, so that moving is renaming.
    parent = to if to.is_dir() else to.parent
    while not parent.is_dir():
        parent = parent.parent
    folder = parent / f".stentor-export-{os.getpid()}"
    try:
        folder.mkdir()
        yield folder
        to.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            file.rename(to / file.name)
    except Different as error:
        wrong = to.with_name(f"{to.name}-wrong")
        replace(folder, wrong)
        raise Different(
            f"The copy does not do what the model does: {error}. It is kept as {wrong} and should not be used; please "
            "report this with the versions that `stentor doctor` prints."
        ) from error
    except OSError as error:
        raise ConfigError(f"{error.filename or to} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_facts(source: Path, to: Path) -> None:
    for name in FACTS:
        if (source / name).exists():
            shutil.copy(source / name, to / name)
    if (source / VOICES).is_dir():
        shutil.copytree(source / VOICES, to / VOICES)


def _copy(model: str, source: Path, to: Path) -> str:
    with written(to) as folder:  # of ONNX, which has no losses to compare, the bytes are enough
        shutil.copytree(source, folder, dirs_exist_ok=True)
        files = [p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()]
        _, other, failed = filecmp.cmpfiles(source, folder, files, shallow=False)
        if other or failed:
            raise Different(f"{(other + failed)[0]} is not what was copied")
        same = f"its {len(files)} files are those of the model"
        if (source / "onnx_config.json").is_file():
            return same
        try:
            loaded = load(model)
        except ConfigError as error:  # such as adapters whose base is not at hand
            return f"{same}; they were not run, because the model itself cannot be loaded here: {error}".rstrip(".")
        if not_comparable(loaded.task, loaded.bundle) or num_parameters(loaded.bundle) > LARGE:
            return same
        reference = probe_model(loaded)
        del loaded
        return str(check_copy(*reference, folder)) if reference else same


def _merge(model: str, source: Path, to: Path) -> str:
    """The whole model, adapters folded in."""
    loaded = load(model)
    bundle = loaded.bundle
    with written(to) as folder:
        bundle.family.save_merged(bundle, folder)
        _copy_facts(source, folder)
        if reason := not_comparable(loaded.task, bundle):
            return f"not checked: {reason}"
        if num_parameters(bundle) > LARGE:
            return str(same_tensors(bundle, bundle.model.state_dict(), folder))
        reference = probe_model(loaded)
        del loaded, bundle
        return str(check_copy(*reference, folder)) if reference else "not checked: its evaluation data are gone"


def _export_onnx(model: str, source: Path, to: Path, quantization: str | None) -> str:
    """Write and check the graphs; returns what was compared."""
    require("onnx", "An ONNX export")
    require("voice", "The check of an ONNX export")
    loaded = load(model, "cpu")
    loaded.for_transcription()
    with written(to) as folder:
        loaded.bundle.family.save_onnx(loaded.bundle, folder)
        _copy_facts(source, folder)
        checked = str(onnx_graphs.compare(loaded, load(folder, "cpu"), clips(loaded)))
        if quantization is not None:
            onnx_graphs.quantize(folder, quantization)
            agreement = onnx_graphs.compare_quantized(loaded, folder, quantization)
            checked += f"; then with weights in {quantization}, {agreement} in {quantization}"
        add_usage(folder, checked, quantization)
    return checked


def _export_ct2(model: str, source: Path, to: Path, quantization: str | None) -> str:
    """Write and check what CTranslate2 runs; returns what was compared."""
    loaded = load(model, "cpu")
    loaded.for_transcription()
    with written(to) as folder:
        loaded.bundle.family.save_ct2(loaded.bundle, folder, quantization)
        _copy_facts(source, folder)
        reference = probe_model(loaded)
        assert reference is not None  # a recogniser can always be given the built-in voice
        probe, original = reference
        tolerance = COARSE if quantization and quantization.startswith("int") else HALF if quantization else FULL
        copied = ModelOutputs(ct2_transcripts(folder, loaded.bundle, probe.examples))
        return str(probe.compare(original, copied, tolerance))
