"""Options of where work is done: processes of this machine, or a cluster."""

from dataclasses import dataclass
from pathlib import Path

from stentor.inference.declarations import Argument, Flag, Option
from stentor.inference.options import FILES

CHANNEL = "Channel of the recording, from 0, such as one side of a call. Default: their mean."
DEVICE = "auto, cpu, cuda, cuda:N or mps."
JOBS = "Processes, of one thread each when more than one. Default: 1; with --ray what the cluster offers."
MODEL_PLUGINS = "A Python file with your own model family."
RAY = "Work on a Ray cluster: auto (the one that runs here, or one for this command) or HOST:PORT."
WORKERS = "With --ray: workers. Default: as many as the cluster offers."


@dataclass(kw_only=True)
class Cluster:
    """Where the work is done: in processes of this machine, or on a Ray cluster."""

    jobs: int | None = Option(JOBS, min=1)
    ray: str | None = Option(RAY)
    plugin: list[Path] = Option("A Python file whose classes extend Stentor. May be repeated.", [], local=True)


@dataclass(kw_only=True)
class GpuCluster(Cluster):
    """The same, for work with a model."""

    gpus_per_worker: float | None = Option(
        "With --ray: GPUs of each worker, such as 0.25. Default: 1 with GPUs, 0 without.", min=0.0, needs="ray"
    )


@dataclass(kw_only=True)
class Workers(GpuCluster):
    """The same, on devices that are named."""

    device: str = Option(DEVICE, "auto")


@dataclass(kw_only=True)
class FileWorkers(Workers):
    """The same, where only a cluster has several processes."""

    jobs: int | None = Option(WORKERS, min=1, needs="ray")
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)


@dataclass(kw_only=True)
class AudioFiles(FileWorkers):
    """Audio files that a model works on, and where the outputs go."""

    model: str = Argument("Run folder, export folder or Hub id.")
    audio: list[str] = Argument(
        "Audio files of any length, folders, patterns in quotes ('talks/**/*.mp3'), addresses (s3://, gs://, hf://, "
        "https://), or - for standard input."
    )
    out: str | None = Option("Folder for the files (made when missing). Without: standard output.", output=True)
    skip_existing: bool = Flag("Leave out files whose outputs are in the folder --out already.", ways=(FILES,))
    channel: int | None = Option(CHANNEL, min=0)
