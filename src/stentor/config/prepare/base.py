"""Base of the steps of `prepare:`."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from stentor.data.storage import StoragePath
from stentor.section import Choice, Section


class Preparation(Choice):
    """One step of `prepare:`, as the verb of the same name: made before the run, in the order of the list, unless it
    was made before."""

    option_names: ClassVar[dict[str, str]] = {}
    """Keys that are called otherwise on the command line."""

    to: StoragePath
    """Output: a manifest (.jsonl) for `words`, otherwise a folder."""

    @property
    def marker(self) -> Path:
        """The file that says with which settings the step was done."""
        return self.to.with_name(f"{self.to.name}.prepared.json")

    def options(self) -> dict[str, Any]:
        """The options of the verb, by name; sections and lists of them as they are written on the command line."""
        return {self.option_names.get(name, name): _option(value) for name, value in self if name != "type"}


class Place(Section):
    """Where a step is done."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""


class ClusterPlace(Place):
    """Where a step is done that a Ray cluster can do as well."""

    ray: str | None = None
    """A Ray cluster: auto (the one that runs here, or one for this command) or HOST:PORT. Null: this machine."""
    gpus_per_worker: float | None = Field(None, ge=0)
    """GPUs of each worker of the cluster, such as 0.25. Null: 1 with GPUs, 0 without."""
    jobs: int | None = Field(None, ge=1)
    """Processes. Null: one for each device; on a cluster what it offers."""


def _option(value: Any) -> Any:
    if isinstance(value, list):
        return [_option(each) for each in value]
    return ",".join(options_of(value)) or None if isinstance(value, Section) else value


def options_of(section: Section) -> list[str]:
    """The keys of a section as they were written, `key=value` on the command line, with the `type` of a choice."""
    from stentor.config.yaml_writer import inline

    written = section.model_dump(mode="json", by_alias=True, exclude_unset=True, serialize_as_any=True)
    kind = {"type": section.type} if isinstance(section, Choice) else {}
    return [f"{key}={inline(value)}" for key, value in (kind | written).items()]
