"""Model loading from a run folder, an export folder, a storage URL or the Hugging Face Hub."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from stentor.data.storage import as_path, is_remote, name_of
from stentor.data.storage_cache import local_folder
from stentor.data.trained_speech import TrainedSpeech
from stentor.errors import ConfigError
from stentor.inference.model import Model, read_object
from stentor.models.base import Family
from stentor.models.pretrained.weights import ADAPTER_FILE, SECTION_FILE, read_section
from stentor.models.runtimes.load import export_in, refuse_foreign, refuse_training
from stentor.models.skeleton import without_weights
from stentor.section import saved_in
from stentor.tasks.base import Task
from stentor.version import EXPORT_FORMAT, PAUSE_KEY, refuse_newer

CONFIG = "config.json"
TRAINING_CONFIG = "training_config.json"
AnyFamily = TypeVar("AnyFamily", bound=Family)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load(path: str | Path, device: str = "auto", weights: bool = True) -> Model:
    """Load a trained model for inference.

    Args:
        path: run folder, export folder, storage URL (`s3://...`) or Hub id (`owner/name`).
        device: `auto` (the GPU if there is one), `cpu`, `cuda`, `cuda:1` or `mps`.
        weights: False leaves the weights out, for the processor and the settings alone; not all models can do that.

    Raises ConfigError if there is no such model, its family is unknown or the device does not exist.
    """
    torch_device = pick_device(device)
    folder = find_export(path, weights)
    export = export_in(folder)
    settings = folder if export is None else export.settings
    config = read_object(settings / CONFIG)
    families: dict[str, Any] = dict(Family.choices())
    family = next((known for known in families.values() if known.can_load(config)), None)
    if family is None:
        if config.get("model_type") == "voxlm":
            raise ConfigError(f"{folder} is a model of VoxLM: `stentor import voxlm {folder} --to FOLDER` first.")
        raise ConfigError(
            f"{settings / CONFIG} has model_type {config.get('model_type')!r}, which no known model family loads. "
            f"Known families: {', '.join(sorted(families))}. For a family of a plug-in, give --plugin."
        )
    if export is not None and torch_device.type != "cpu" and device != "auto":
        raise ConfigError(f"{folder} is an {export.format} export, which runs on the CPU here: leave the device out.")
    try:
        with saved_in(settings / CONFIG), nullcontext() if weights else without_weights():
            bundle = export.open(family) if export is not None and weights else family.load(settings)
    except json.JSONDecodeError as error:
        raise ConfigError(f"A JSON file in {settings} is damaged ({error}): copy or export the model again.") from error
    if weights:
        bundle.model.to(torch_device).eval()
    if weights and (codec := bundle.traits.codec) is not None:
        codec.to(str(torch_device))
    training = read_object(folder / TRAINING_CONFIG) if (folder / TRAINING_CONFIG).is_file() else {}
    # A folder that Stentor did not write gets the main task of its family.
    kind = family.tasks[0] if family.tasks and "transcribe" not in family.tasks else "transcribe"
    if bundle.traits.turns:
        kind = "who_said_what"
    if bundle.traits.trained_speech is None and PAUSE_KEY in training:
        bundle.traits.trained_speech = TrainedSpeech(pause=training[PAUSE_KEY])
    with saved_in(folder / TRAINING_CONFIG):
        task: Task = Task.model_validate(training["task"] if training else {"type": kind})
    return Model(str(path), bundle, task, folder, training)


def find_export(path: str | Path, weights: bool = True) -> Path:
    """Return the export folder of a run folder, a checkpoint, an export folder or a Hub id.

    For an unfinished run, this is the export of its best checkpoint, otherwise of its latest. A Hub id is downloaded
    unless it is in the local cache, where they are asked for with its `weights`; a folder in remote storage is copied
    into the cache. Raises ConfigError if there is no model, or if the export needs a newer Stentor.
    """
    folder = local_folder(_export_folder(path, weights))
    check_format(folder)
    return folder


def from_runs(family: AnyFamily) -> AnyFamily:
    """A section in which run folders under `init` and `from` are their exports, and `from` with adapters is their base,
    which starts from them (`init`). Other sections are unchanged."""
    named = family.model_dump(include={"init", "source"}, by_alias=False)
    update: dict[str, Any] = {}
    for key, value in named.items():
        if value and not (Path(value) / CONFIG).is_file() and (Path(value) / "resolved.yaml").is_file():
            update[key] = str(find_export(value))
    for value in filter(None, (named | update).values()):
        refuse_training(Path(value))
    export = Path((named | update).get("source") or "")
    if (export / ADAPTER_FILE).is_file() and (export / SECTION_FILE).is_file():
        base, _ = read_section(type(family), export)
        start = update.get("init") or family.init or str(export)
        update |= {"source": base.source, "revision": base.revision, "init": start}
    return family.model_copy(update=update)


def check_format(folder: Path) -> None:
    """Raise ConfigError if a model folder is an export that needs a newer Stentor."""
    if (file := folder / TRAINING_CONFIG).is_file():
        refuse_newer(file, read_object(file), EXPORT_FORMAT)


def _export_folder(path: str | Path, weights: bool) -> Path:
    folder = as_path(path)
    if not is_remote(folder):
        refuse_foreign(folder)
    if folder.is_dir():
        if (folder / CONFIG).is_file():
            return folder
        if (folder / "export" / CONFIG).is_file():
            return folder / "export"
        checkpoints = folder / "checkpoints"
        for pointer in ("best", "latest"):
            if (checkpoints / pointer).is_file():
                export = checkpoints / (checkpoints / pointer).read_text("utf-8").strip() / "export"
                if (export / CONFIG).is_file():
                    return export
        if checkpoints.is_dir() or (folder / "resolved.yaml").is_file():
            raise ConfigError(f"The run {folder} has not saved a checkpoint yet: continue its training until it has.")
        raise ConfigError(
            f"{folder} is neither a run folder nor an export folder: it has no {CONFIG}, export/ or checkpoints/."
        )
    if folder.exists():
        hint = " Import a checkpoint of VoxLM with `stentor import voxlm`." if folder.suffix == ".pt" else ""
        raise ConfigError(f"{folder} is a file; a model is a run folder, an export folder or a Hub id.{hint}")
    if is_remote(folder):
        raise ConfigError(f"There is no model at {name_of(folder)}: check the bucket and the path.")
    if not HUB_ID.fullmatch(str(path)):
        raise ConfigError(f"There is no model {path}: no such folder, and not a Hub id such as owner/name.")
    return _download(str(path), weights)


def pick_device(name: str, here: bool = True) -> Any:
    """Return the torch device for `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.

    Raises ConfigError for another name and, with `here`, for a device that this machine does not have."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"Unknown device {name}: use auto, cpu, cuda, cuda:N or mps.") from None
    if not here:
        return device
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"There is no device {name}: torch finds {torch.cuda.device_count()} GPUs (see `stentor doctor`)."
        )
    if (device.type == "mps" and not torch.backends.mps.is_available()) or (
        device.type == "xpu" and not torch.xpu.is_available()
    ):
        raise ConfigError(f"There is no device {name}: torch finds no such GPU here.")
    return device


def _download(name: str, weights: bool) -> Path:
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        # Weights in other formats than safetensors are never loaded.
        unread = ["*.bin", "*.pt", "*.pth", "*.pkl", "*.h5", "*.msgpack", *([] if weights else ["*.safetensors"])]
        folder = Path(snapshot_download(name, ignore_patterns=unread))
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"There is no folder {name} here, and no model {name} on the Hugging Face Hub that you may read "
            "(private ones need `hf auth login`)."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HfHubHTTPError, OSError) as error:
        raise ConfigError(
            f"There is no folder {name} here, and the Hugging Face Hub cannot be reached to look for the model {name}. "
            + (
                "HF_HUB_OFFLINE is set: unset it, or check the path."
                if HF_HUB_OFFLINE
                else "Check the path or the connection."
            )
        ) from error
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"The Hub model {name} has no {CONFIG}.")
    return folder
