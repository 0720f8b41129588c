"""Executor of a verb: processes of this machine or a cluster, as its options say."""

from collections.abc import Sequence

from stentor.pipeline.options import Cluster, GpuCluster, Workers
from stentor.pipeline.worker import Executor, LocalExecutor


def make_executor(
    options: Cluster, devices: Sequence[str] = (), fork: bool = False, jobs: int | None = None
) -> Executor:
    """Where the work of a verb is done: on a cluster, or in processes of this machine, one for each of `devices` unless
    `jobs` says otherwise. Without `devices` no GPU is needed; `fork` is as `LocalExecutor` takes it. Raises
    ConfigError."""
    jobs = jobs or options.jobs
    if options.ray is not None:
        from stentor.pipeline.ray_executor import RayExecutor

        device, gpus = ("auto", None) if devices else ("cpu", 0.0)
        if devices and isinstance(options, GpuCluster):
            gpus = options.gpus_per_worker
        if devices and isinstance(options, Workers):
            device = options.device
        return RayExecutor(options.ray, jobs, gpus, device, options.plugin)
    return LocalExecutor(jobs or len(devices) or 1, devices or ("cpu",), options.plugin, fork)


def check_device(given: str | Sequence[str], ray: str | None = None) -> None:
    """Raise ConfigError for a device that is not there, also where nothing will be loaded on it. Of a cluster only its
    machines know what they have."""
    for device in [given] if isinstance(given, str) else given:
        if device != "auto":
            device_names(device, here=ray is None)


def device_names(device: str, here: bool = True) -> list[str]:
    """The devices that processes are dealt to: all GPUs for `auto`, those of a list such as `cuda:0,1`. Raises
    ConfigError (see `pick_device`)."""
    import torch

    from stentor.inference.load import pick_device

    if device == "auto" and torch.cuda.is_available():
        return [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    first, *more = device.split(",")
    kind = first.partition(":")[0]
    names = [first, *(f"{kind}:{name}" if name.isdigit() else name for name in more)]
    return [str(pick_device(name, here)) for name in names]
