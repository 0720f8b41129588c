"""Base of the steps of `prepare:`."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from stentor.data.storage import StoragePath
from stentor.section import Choice, Section


class Preparation(Choice):
    """A step of `prepare:`, the same as the command of that name. Steps run in order before training; a step that is
    already done is skipped."""

    option_names: ClassVar[dict[str, str]] = {}
    """Keys that have another name on the command line."""

    to: StoragePath
    """Output: a manifest (.jsonl) for `words`, otherwise a folder."""

    @property
    def marker(self) -> Path:
        """File with the settings that the step was done with."""
        return self.to.with_name(f"{self.to.name}.prepared.json")

    def options(self) -> dict[str, Any]:
        """Return the options of the command by name; sections and lists of them as written on the command line."""
        return {self.option_names.get(name, name): _option(value) for name, value in self if name != "type"}


class Place(Section):
    """Device of a step."""

    device: str = "auto"
    """Device: auto (the GPU if there is one), cpu, cuda, cuda:N or mps."""


class ClusterPlace(Place):
    """Device of a step that can also run on a Ray cluster."""

    ray: str | None = None
    """Ray cluster: auto (a running one, or a new one for this command) or HOST:PORT. Null: only this machine."""
    gpus_per_worker: float | None = Field(None, ge=0)
    """GPUs per worker of the cluster, such as 0.25. Null: 1 if the cluster has GPUs, otherwise 0."""
    jobs: int | None = Field(None, ge=1)
    """Number of processes. Null: one for each device; on a cluster, as many as fit."""


def _option(value: Any) -> Any:
    if isinstance(value, list):
        return [_option(each) for each in value]
    return ",".join(options_of(value)) or None if isinstance(value, Section) else value


def options_of(section: Section) -> list[str]:
    """Return the keys of a section as written, `key=value` on the command line, with the `type` of a choice."""
    from stentor.config.yaml_writer import inline

    written = section.model_dump(mode="json", by_alias=True, exclude_unset=True, serialize_as_any=True)
    kind = {"type": section.type} if isinstance(section, Choice) else {}
    return [f"{key}={inline(value)}" for key, value in (kind | written).items()]
