"""`stentor export`: a copy of a finished model for others, compared with the original before it is handed over."""

import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stentor.errors import ConfigError, require
from stentor.export.compare import Reference, add_usage
from stentor.export.exporter import Exporter
from stentor.export.probe import Different
from stentor.export.speech import SpeechReference
from stentor.export.table import FORMATS, exporter_of
from stentor.export.verify import LARGE, check_copy, not_comparable, num_parameters, probe_model, replace, same_tensors
from stentor.inference.load import find_export, load
from stentor.inference.model import Model
from stentor.inference.speak.voice import VOICES
from stentor.models.runtimes.load import export_in
from stentor.tasks.speak.task import Speak

FACTS = ("training_config.json", "train_results.json", "eval_results.json", "README.md")
"""Facts of an export about its training."""


@dataclass(frozen=True)
class Settings:
    """Settings of formats other than `hf`."""

    quantizations: Sequence[str] = ()
    """Weights; with several, each has a folder of its name."""
    allow_difference: bool = False
    """Hand over what differs from the model by more than the limit."""
    package: Path | None = None
    """A copy of onnxruntime-web for `web`. None: downloaded once."""
    judge: str | None = None
    """Recogniser that hears speech. None: none does."""


def export(
    model: str, to: Path, merge: bool = False, formats: Sequence[str] = ("hf",), settings: Settings = Settings()
) -> str:
    """Write a copy of a model for others into `to`; what it was compared by is said in the answer.

    `formats`: of `table.FORMATS`; of several, each but `hf` has a folder of its name in `to`. `hf` is the model's own
    export, with adapters folded in when `merge` is set. Everything is run in its runtime and compared with the model
    before it appears in `to`: raises `StentorError` when it differs (unless `settings.allow_difference` is set),
    ConfigError for formats that the model has not.
    """
    if unknown := [f for f in formats if f not in FORMATS]:
        raise ConfigError(
            f"--format {unknown[0]} is not known; known are {', '.join(FORMATS)}, or several with commas."
        )
    others = [f for f in formats if f != "hf"]
    if settings.quantizations and not others:
        raise ConfigError("--quantization is for other formats than hf: name one with --format, or leave it out.")
    if merge and "hf" not in formats:
        raise ConfigError("--merge is for --format hf: in the other formats adapters are folded in. Leave it out.")
    if settings.package is not None and "web" not in formats:
        raise ConfigError("--runtime is for --format web: leave it out.")
    source = find_export(model)
    check_empty(to)
    if (others or merge) and export_in(source) is not None:
        raise ConfigError(f"{model} is an export already: copy it, or export the model that it was made from.")
    loaded = load(model, "cpu") if others else None
    exporters = {f: exporter_of(f, loaded.bundle) for f in others if loaded is not None}
    if settings.judge is not None and not (loaded is not None and isinstance(loaded.task, Speak)):
        raise ConfigError("--judge is for other formats than hf of models that speak: leave it out.")
    for name, exporter in exporters.items():
        require(exporter.extra, f"--format {name}")
        exporter.package = settings.package
        if unknown := [q for q in settings.quantizations if q not in (exporter.precision, *exporter.quantizations)]:
            known = f"{name} knows {', '.join((exporter.precision, *exporter.quantizations))}"
            raise ConfigError(f"--quantization {unknown[0]} is not for --format {name}: {known}.")
    sentences = []
    if "hf" in formats:
        checked = _merge(model, source, to) if merge else _copy(model, source, to)
        sentences.append(f"Exported to {to}{', whole: it needs no base model' if merge else ''}; {checked}.")
    for name, exporter in exporters.items():
        assert loaded is not None
        folder = to if len(formats) == 1 else to / name
        reference = reference_of(loaded, exporter, name, settings.judge)
        checked = _written(reference, source, folder, settings)
        sentences.append(f"Exported to {folder} for {exporter.runtime}; {checked}.")
    return " ".join(sentences)


def reference_of(model: Model, exporter: Exporter, format: str, judge: str | None) -> Reference | SpeechReference:
    """The comparison of a model with its export in a format."""
    if isinstance(model.task, Speak):
        return SpeechReference(model, exporter, format, judge)
    return Reference(model, exporter, format)


def _written(reference: Reference | SpeechReference, source: Path, to: Path, settings: Settings) -> str:
    """Write a format, compare it, and hand it over with its card; what is not quantised is always measured, to be in
    the table."""
    exporter = reference.exporter
    asked = [None if q == exporter.precision else q for q in settings.quantizations] or [None]
    with written(to) as folder:
        float_folder = folder if asked == [None] else folder / exporter.precision
        for quantization in dict.fromkeys((None, *asked)):
            place = folder / quantization if quantization else float_folder
            place.mkdir(exist_ok=True)
            if quantization is None:
                exporter.write(reference.model, place)
            else:
                exporter.quantize(reference.model, float_folder, place, quantization)
            reference.check(place, quantization, settings.allow_difference)
        if None not in asked:
            shutil.rmtree(float_folder)
        if len(asked) == 1 and asked[0] is not None:
            for file in (folder / asked[0]).iterdir():
                file.rename(folder / file.name)
            (folder / asked[0]).rmdir()
        _copy_facts(source, folder, FACTS if exporter.keeps_facts else FACTS[-1:])
        add_usage(folder, exporter, reference.comparison)
    return reference.comparison.summary()


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
        if parent != to:
            check_empty(to)  # another command may have written into it since
        for file in folder.iterdir():
            file.rename(to / file.name)
    except Different as error:
        wrong = to.with_name(f"{to.name}-wrong")
        replace(folder, wrong)
        raise Different(
            f"The copy does not do what the model does: {error}. It is kept as {wrong} and should not be used. If "
            "you asked for weights of fewer bits, take more (--quantization). --allow-difference hands it over all the "
            "same. Otherwise please report this with the versions that `stentor doctor` prints."
        ) from error
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_facts(source: Path, to: Path, names: Sequence[str] = FACTS) -> None:
    for name in names:
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
        if export_in(source) is not None:
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
