"""Options of processes, devices and clusters."""

from dataclasses import dataclass
from pathlib import Path

from stentor.audio.selection import Selection
from stentor.inference.declarations import Argument, Flag, Option
from stentor.inference.options import FILES

CHANNEL = "Channel of the recording, from 0, such as one side of a call. Default: the mean of all channels."
TRACK = "Audio track of the recording, from 0. Default: the first, with a warning if there are several."
PARTIAL = "Read what is there of files that are cut short or damaged, with a warning."
DEVICE = "Device: auto (the GPU if there is one), cpu, cuda, cuda:N or mps."
FORCE = "Replace existing files, also those of other options or programs."
JOBS = "Number of processes, with one thread each if more than one. Default: 1; with --ray, as many as fit."
MODEL_PLUGINS = "Python file with your own model family."
RAY = "Use a Ray cluster: auto (a running one, or a new one for this command) or HOST:PORT."
WORKERS = "Number of workers, with --ray. Default: as many as fit on the cluster."


@dataclass(kw_only=True)
class Cluster:
    """Options of the executor: processes of this machine, or a Ray cluster."""

    jobs: int | None = Option(JOBS, min=1, neutral=True)
    ray: str | None = Option(RAY, neutral=True)
    plugin: list[Path] = Option("Python file with classes that extend Stentor. May be repeated.", [], local=True)


@dataclass(kw_only=True)
class GpuCluster(Cluster):
    """Options of the executor for work with a model."""

    gpus_per_worker: float | None = Option(
        "GPUs per worker, with --ray, such as 0.25. Default: 1 if the cluster has GPUs, otherwise 0.",
        min=0.0,
        needs="ray",
        neutral=True,
    )


@dataclass(kw_only=True)
class Workers(GpuCluster):
    """Options of the executor with a choice of the device."""

    device: str = Option(DEVICE, "auto", neutral=True)


@dataclass(kw_only=True)
class FileWorkers(Workers):
    """Options of the executor for work with several processes only on a cluster."""

    jobs: int | None = Option(WORKERS, min=1, needs="ray", neutral=True)
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)


@dataclass(kw_only=True)
class Reading:
    """Options of reading recordings."""

    channel: int | None = Option(CHANNEL, min=0)
    track: int | None = Option(TRACK, min=0)
    partial: bool = Flag(PARTIAL)

    @property
    def selection(self) -> Selection:
        return Selection(self.channel, self.track, self.partial)


@dataclass(kw_only=True)
class AudioFiles(Reading, FileWorkers):
    """Model, audio files and output folder of a command."""

    model: str = Argument("Run folder, export folder or Hub id.", model=True)
    audio: list[str] = Argument(
        "Audio files of any length, folders, patterns in quotes ('talks/**/*.mp3'), URLs (s3://, gs://, hf://, "
        "https://), or - for standard input.",
        neutral=True,
    )
    out: str | None = Option("Output folder, created if needed. Default: standard output.", output=True)
    skip_existing: bool = Flag(
        "Skip files that have their outputs of the same options in --out.", ways=(FILES,), neutral=True
    )
    force: bool = Flag(FORCE, ways=(FILES,), neutral=True)
