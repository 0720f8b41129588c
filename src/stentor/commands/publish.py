"""`stentor publish`: builds the folder of a model, a data set or a demo and sends it to the Hub, or leaves it here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from stentor.errors import ConfigError
from stentor.publish.hub import Kind, Target, benchmark_task, licence_of, publish


def publish_model(
    model: str,
    to: str | None,
    private: bool | None = None,
    dry_run: Path | None = None,
    message: str | None = None,
    licence: str | None = None,
    card: Path | None = None,
    merge: bool = False,
    say: Callable[[str], None] = print,
) -> str:
    """Publish a run folder or an export folder, with `merge` as a whole model; answers the link, or the folder of a dry
    run. Raises ConfigError and StentorError as `stentor.publish.hub.publish` and `stentor.publish.model.build`."""
    from stentor.publish.model import build

    target, card = _target(to, "model", private), _card(card)

    def write(folder: Path) -> list[str]:
        if not merge:
            return build(model, folder, to, licence, card, None, licence_of, benchmark_task)
        from stentor.commands.export import export

        # Beside the folder that takes its files, so that they can be linked.
        with tempfile.TemporaryDirectory(prefix=".stentor-merge-", dir=folder.resolve().parent) as place:
            whole = Path(place) / "export"
            checked = export(model, whole, merge=True, format="hf").partition("; ")[2]  # without the folder's name
            say(f"The adapters are folded in; {checked}")
            return build(model, folder, to, licence, card, whole, licence_of, benchmark_task)

    return publish(write, target, dry_run, message, say, beside=_beside(Path(model)))


def publish_dataset(
    data: Sequence[str],
    to: str | None,
    private: bool | None = None,
    dry_run: Path | None = None,
    message: str | None = None,
    licence: str | None = None,
    card: Path | None = None,
    name: str | None = None,
    flac: bool = False,
    say: Callable[[str], None] = print,
) -> str:
    """Publish manifests with their audio; see `publish_model` and `stentor.publish.dataset.build`."""
    from stentor.publish.dataset import build, manifest_of

    target, card, sends = _target(to, "dataset", private), _card(card), dry_run is None
    return publish(
        lambda folder: build(data, folder, to, licence, card, name, flac, link=sends),
        target,
        dry_run,
        message,
        say,
        beside=_beside(manifest_of(data[0])),
    )


def publish_demo(
    model: str,
    to: str | None,
    private: bool | None = None,
    dry_run: Path | None = None,
    message: str | None = None,
    title: str | None = None,
    task: str | None = None,
    hardware: str = "cpu-basic",
    secrets: Sequence[str] = (),
    card: Path | None = None,
    say: Callable[[str], None] = print,
) -> str:
    """Publish a demo of a model (a folder, or its id on the Hub) as a Space; see `publish_model` and
    `stentor.publish.space.build`. `secrets`: names of environment variables whose values become the Space's secrets."""
    from stentor.publish.space import build

    card = _card(card)
    if missing := [name for name in secrets if not os.environ.get(name)]:
        raise ConfigError(f"--secret {missing[0]}: there is no environment variable of this name, or it is empty.")

    def write(folder: Path) -> list[str]:
        build(model, folder, title=title, task=task, hardware=hardware)
        if card is not None:
            shutil.copyfile(card, folder / "README.md")
        return []

    values = {name: os.environ[name] for name in secrets}
    beside = _beside(Path(model))
    return publish(write, _target(to, "space", private), dry_run, message, say, values, beside)


def _beside(path: Path) -> Path | None:
    """The folder that something of this machine is in; None for a Hub id."""
    return path.resolve().parent if path.exists() else None


def _card(card: Path | None) -> Path | None:
    """The file of `--card`. Raises ConfigError when there is none."""
    if card is not None and not card.is_file():
        raise ConfigError(f"--card {card}: there is no such file.")
    return card


def _target(to: str | None, kind: Kind, private: bool | None) -> Target | None:
    return Target(to, kind, private) if to is not None else None
