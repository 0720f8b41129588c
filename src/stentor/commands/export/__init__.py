"""`stentor export`: a finished model as a copy for others, compared with the original before it is handed over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stentor.errors import ConfigError, StentorError

FORMATS = ("hf", "onnx", "ct2")
FACTS = ("training_config.json", "train_results.json", "eval_results.json", "README.md")
"""What an export says of its training."""


def export(model: str, to: Path, merge: bool, format: str, quantization: str | None = None) -> str:
    """Write a copy of a model for others into `to`; what it was compared by is said in the answer.

    `format`: `hf` (the model's own export, with adapters folded in when `merge` is set), `onnx`, `ct2` (CTranslate2,
    with its weights in `quantization`), or several with commas: then graphs go into `to/onnx` and CTranslate2's files
    into `to/ct2`. Everything is loaded back and compared with the model before it appears in `to`: raises
    `StentorError` when it differs, ConfigError for formats that the model has not.
    """
    from stentor.inference.load import find_export

    formats = [f.strip() for f in format.split(",")]
    if unknown := [f for f in formats if f not in FORMATS]:
        raise ConfigError(
            f"--format {unknown[0]} is not known; known are {', '.join(FORMATS)}, or several with commas."
        )
    if quantization is not None and "ct2" not in formats:
        raise ConfigError("--quantization is for CTranslate2: add --format ct2, or leave it out.")
    source = find_export(model)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not empty: choose another folder, so that nothing is overwritten.")
    if (source / "onnx_config.json").is_file() and (merge or formats != ["hf"]):
        raise ConfigError(f"{model} is an ONNX export already: copy it, or export the model that it was made from.")
    places = {f: to if formats == [f] or f == "hf" else to / f for f in formats}
    said = []
    if "onnx" in formats:
        checked = _export_onnx(model, source, places["onnx"])
        said.append(f"ONNX graphs are in {places['onnx']}, checked with onnxruntime on {checked}.")
    if "ct2" in formats:
        checked = _export_ct2(model, source, places["ct2"], quantization)
        said.append(f"CTranslate2's model is in {places['ct2']}; {checked}.")
    if "hf" in formats:
        checked = _merge(model, source, to) if merge else _copy(model, source, to)
        said.insert(0, f"Exported to {to}{', whole: it needs no base model' if merge else ''}; {checked}.")
    return " ".join(said)


@contextmanager
def _written(to: Path) -> Iterator[Path]:
    """A folder to write into, whose files are moved into `to` at the end; after an error nothing of it is left."""
    import os
    import shutil

    # In the folder that will hold it: the same disk, so that moving is renaming.
    parent = to if to.is_dir() else to.parent
    while not parent.is_dir():
        parent = parent.parent
    place = parent / f".stentor-export-{os.getpid()}"
    try:
        place.mkdir()
        yield place
        to.mkdir(parents=True, exist_ok=True)
        for file in place.iterdir():
            file.rename(to / file.name)
    except OSError as error:
        raise ConfigError(f"{error.filename or to} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _copy_facts(source: Path, to: Path) -> None:
    import shutil

    for name in FACTS:
        if (source / name).exists():
            shutil.copy(source / name, to / name)


def _refuse(place: Path, to: Path, error: StentorError) -> StentorError:
    """The error of a copy that does something else, which is kept under another name."""
    from stentor.commands.export.verify import Different, replace

    kept = to.with_name(f"{to.name}-wrong")
    replace(place, kept)
    return Different(
        f"The copy does not do what the model does: {error}. It is kept as {kept} and should not be used; please "
        "report this with the versions that `stentor doctor` prints."
    )


def _copy(model: str, source: Path, to: Path) -> str:
    """The files of the export as they are."""
    import filecmp
    import shutil

    from stentor.commands.export.verify import LARGE, Different, check_copy, listen, parameters, unheard
    from stentor.inference.load import load

    with _written(to) as place:  # of ONNX, which has no losses to compare, the bytes are enough
        shutil.copytree(source, place, dirs_exist_ok=True)
        files = [str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()]
        try:
            _, other, failed = filecmp.cmpfiles(source, place, files, shallow=False)
            if other or failed:
                raise Different(f"{(other + failed)[0]} is not what was copied")
            same = f"its {len(files)} files are those of the model"
            if (source / "onnx_config.json").is_file():
                return same
            try:
                loaded = load(model)
            except ConfigError as error:  # such as adapters whose base is not at hand
                return f"{same}; they were not run, because the model itself cannot be loaded here: {error}".rstrip(".")
            if unheard(loaded.task, loaded.bundle) or parameters(loaded.bundle) > LARGE:
                return same
            listened = listen(loaded)
            del loaded
            return str(check_copy(*listened, place)) if listened else same
        except Different as error:
            raise _refuse(place, to, error) from error


def _merge(model: str, source: Path, to: Path) -> str:
    """The whole model, adapters folded in."""
    from stentor.commands.export.verify import LARGE, Different, check_copy, listen, parameters, same_tensors, unheard
    from stentor.inference.load import load

    loaded = load(model)
    bundle = loaded.bundle
    with _written(to) as place:
        bundle.family.save_merged(bundle, place)
        _copy_facts(source, place)
        try:
            if reason := unheard(loaded.task, bundle):
                return f"not checked: {reason}"
            if parameters(bundle) > LARGE:
                return same_tensors(bundle, bundle.model.state_dict(), place)
            listened = listen(loaded)
            del loaded, bundle
            return str(check_copy(*listened, place)) if listened else "not checked: its evaluation data are gone"
        except Different as error:
            raise _refuse(place, to, error) from error


def _export_onnx(model: str, source: Path, to: Path) -> str:
    """Write and check the graphs; returns what was compared."""
    from stentor.commands.export.verify import clips
    from stentor.commands.export.verify_onnx import compare
    from stentor.inference.load import load
    from stentor.publish.onnx import add_usage

    loaded = load(model, "cpu")
    loaded.for_transcription()
    with _written(to) as place:
        loaded.bundle.family.save_onnx(loaded.bundle, place)
        _copy_facts(source, place)
        agreement = compare(loaded, load(place, "cpu"), clips(loaded))
        add_usage(place, str(agreement))
    return str(agreement)


def _export_ct2(model: str, source: Path, to: Path, quantization: str | None) -> str:
    """Write and check what CTranslate2 runs; returns what was compared."""
    from stentor.commands.export.verify import COARSE, FULL, HALF, Different, Heard, listen
    from stentor.commands.export.verify_ct2 import answers
    from stentor.inference.load import load

    loaded = load(model, "cpu")
    loaded.for_transcription()
    with _written(to) as place:
        loaded.bundle.family.save_ct2(loaded.bundle, place, quantization)
        _copy_facts(source, place)
        listened = listen(loaded)
        assert listened is not None  # a recogniser can always be given the built-in voice
        probe, heard = listened
        allowed = COARSE if quantization and quantization.startswith("int") else HALF if quantization else FULL
        try:
            agreement = probe.compare(heard, Heard(answers(place, loaded.bundle, probe.examples)), allowed)
        except Different as error:
            raise _refuse(place, to, error) from error
    return str(agreement)
