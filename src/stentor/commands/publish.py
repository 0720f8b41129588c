"""`stentor publish`: the folder of a model, a data set or a demo, sent to the Hub or left here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.commands.addresses import brought_run
from stentor.data.storage import is_remote
from stentor.errors import ConfigError, require
from stentor.publish import dataset, model, space
from stentor.publish.files import read
from stentor.publish.hub import Kind, Target, benchmark_task, licence_of, publish

if TYPE_CHECKING:
    from stentor.commands.publish_options import (
        LicensedOptions,
        PublishDatasetOptions,
        PublishDemoOptions,
        PublishModelOptions,
    )


def publish_model(options: PublishModelOptions) -> str:
    """Publish a run folder or an export folder, with `--merge` as a complete model; returns the link, or the folder of
    a dry run. Raises ConfigError and StentorError as `stentor.publish.hub.publish` and `stentor.publish.model.build`.
    """
    options.model = brought_run(options.model)

    def build(folder: Path, export: Path | None = None) -> list[str]:
        return model.build(
            options.model, folder, options.to, options.license, options.card, export, licence_of, benchmark_task
        )

    def write(folder: Path) -> list[str]:
        if not options.merge:
            return build(folder)
        from stentor.export.export import export
        from stentor.inference.load import find_export

        # Beside the folder that takes its files, so that they can be linked.
        with tempfile.TemporaryDirectory(prefix=".stentor-merge-", dir=folder.resolve().parent) as parent:
            merged = Path(parent) / "export"
            check = export(options.model, merged, merge=True).partition("; ")[2]  # without the folder
            adapted = any(find_export(options.model).glob("adapter_*"))
            print(f"{'The adapters are folded in' if adapted else 'The model has no adapters and is whole'}; {check}")
            return build(folder, merged)

    return _publish(options, "model", write, Path(options.model))


def publish_dataset(options: PublishDatasetOptions) -> str:
    """Publish manifests with their audio; see `publish_model` and `stentor.publish.dataset.build`."""

    def write(folder: Path) -> list[str]:
        settings = options.to, options.license, options.card, options.name, options.flac
        return dataset.build(options.data, folder, *settings, link=options.dry_run is None)

    return _publish(options, "dataset", write, dataset.manifest_of(options.data[0]))


def publish_demo(options: PublishDemoOptions) -> str:
    """Publish a demo of a model (a folder, or its id on the Hub) as a Space; see `publish_model` and
    `stentor.publish.space.build`. The environment variables of `--secret` become the Space's secrets. With `--static`,
    see `write_static`."""
    if not options.static:
        require("studio", "`stentor publish demo`")
    options.model = brought_run(options.model)
    if options.runtime is not None and not options.static:
        raise ConfigError("--runtime is for --static: leave it out.")
    if options.static and options.secret:
        raise ConfigError("--secret is for Gradio Spaces: everybody can read the files of a static one. Leave it out.")

    def write(folder: Path) -> list[str]:
        if options.static:
            print(write_static(options.model, folder, options.title, options.runtime))
        else:
            space.build(options.model, folder, title=options.title, task=options.task, hardware=options.hardware)
        if options.card is not None:
            shutil.copyfile(options.card, folder / "README.md")
        return []

    if missing := [name for name in options.secret if not os.environ.get(name)]:
        raise ConfigError(f"--secret {missing[0]}: there is no environment variable of this name, or it is empty.")
    secrets = {name: os.environ[name] for name in options.secret}
    return _publish(options, "space", write, Path(options.model), secrets, "static" if options.static else "gradio")


def write_static(name: str, to: Path, title: str | None = None, package: Path | None = None) -> str:
    """Write the folder of a static Space into `to`, which must be new or empty: the page of `stentor export --format
    web`, which is exported, or copied where `name` is such a folder. `package`: see `write_runtime`.

    Answers what was compared. Raises as `stentor.export.export.export`.
    """
    from stentor.export.export import Settings, check_empty, export
    from stentor.export.web.page import LISTING, write_page
    from stentor.inference.load import TRAINING_CONFIG, find_export

    check_empty(to)
    training, told = {}, f"The page of {name} is published as it is."
    if (Path(name) / LISTING).is_file():
        title = title or read(Path(name) / LISTING).get("title")
        shutil.copytree(name, to, dirs_exist_ok=True)
    else:
        training = read(find_export(name) / TRAINING_CONFIG)
        told = export(name, to, formats=["web"], settings=Settings(package=package))
    title = title or training.get("name") or name.rstrip("/").split("/")[-1]
    write_page(to, title)
    usage = (to / "README.md").read_text(encoding="utf-8").partition("\n## Export for")[2].partition("\n")[2].strip()
    (to / "README.md").write_text(space.static_readme(name, title, training, usage), encoding="utf-8")
    return told


def _publish(
    options: LicensedOptions | PublishDemoOptions,
    kind: Kind,
    build: Callable[[Path], list[str]],
    source: Path,
    secrets: Mapping[str, str] | None = None,
    sdk: str = "gradio",
) -> str:
    """Publish what `build` writes. `source`: what is published, beside which its files can be linked; a Hub id is not.
    `sdk`: of a Space. Raises ConfigError when there is no file of `--card`."""
    target = Target(options.to, kind, options.private, sdk) if options.to is not None else None
    if options.card is not None and not options.card.is_file():
        raise ConfigError(f"--card {options.card}: there is no such file.")
    beside = source.resolve().parent if not is_remote(source) and source.exists() else None
    return publish(build, target, options.dry_run, options.message, secrets=secrets, beside=beside)
