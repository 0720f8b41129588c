"""Pretrained models and configs of transformers, by Hub id, folder or keys, with errors that say what to do."""

import dataclasses
import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError, without_secrets

log = logging.getLogger("stentor")

LIBRARIES = ("huggingface_hub", "httpx", "httpx2", "safetensors", "safetensors_rust", "tokenizers", "transformers")
"""Packages whose own exceptions mean that a model cannot be loaded."""
AWAY = {"OfflineModeIsEnabled", "ConnectionError", "ConnectTimeout", "ConnectError", "LocalEntryNotFoundError"}
"""Exceptions that mean that the Hub was not reached."""


class NotAtHand(ConfigError):
    """A pretrained model that cannot be had here; a network or a folder elsewhere may have it."""


def part_config(part: Any, where: str) -> Any:
    """The transformers config of an encoder or language model section. Raises ConfigError."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if part.source is not None:
        config = load_pretrained(
            part, where, lambda name, options: AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
        )
        return vars(config).get("encoder_config", config) if where in ("model.encoder", "model.ssl") else config
    settings = dict(part.config)
    kind = settings.pop("model_type")
    if kind not in CONFIG_MAPPING:
        raise ConfigError(f"{where}.config.model_type: transformers knows no '{kind}'{_like(kind, CONFIG_MAPPING)}.")
    known = {f.name for f in dataclasses.fields(CONFIG_MAPPING[kind])} | set(CONFIG_MAPPING[kind].attribute_map)
    for key in settings:
        if key not in known:
            raise ConfigError(f"{where}.config: {kind} has no '{key}'{_like(key, known)}.")
    try:
        return AutoConfig.for_model(kind, **settings)
    except Exception as error:  # transformers validates with errors of many kinds, all about these settings
        raise ConfigError(f"{where}.config: {' '.join(str(error).split())}") from error


def load_pretrained(part: Any, where: str, load: Any) -> Any:
    """Call `load(name, options)` for the base model of a part; ConfigError, with what to do, when it cannot be had.
    transformers shows no progress bar."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    name = part.source
    if Path(name).is_dir():
        name = str(Path(name))
    elif name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise NotAtHand(f"{where}.from: the folder {name} does not exist.")
    try:
        return load(name, {"revision": part.revision} if part.revision else {})
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise NotAtHand(f"{where}.from: {without_secrets(_explanation(error, name, part.revision))}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in LIBRARIES:
            raise
        raise NotAtHand(f"{where}.from: {without_secrets(_explanation(error, name, part.revision))}") from None


def _explanation(error: Exception, name: str, revision: str | None) -> str:
    """Say what is wrong with a base model and what to do, from the error of transformers or of the Hub's client."""
    text = " ".join(str(error).split())
    low = text.lower()
    kinds = {type(e).__name__ for e in _chain(error)}
    codes = re.findall(r"\b40[13]\b", text.replace(name, ""))  # a folder may be called run-401
    page, folder = f"https://huggingface.co/{name}", Path(name)
    no_config = folder.is_dir() and not (folder / "config.json").exists()
    unknown = re.search(r"model type `([^`]+)`", text)
    kind = f" ('{unknown.group(1)}')" if unknown else ""
    missing = re.search(r"does not appear to have (?:a file|files) named \(?'?([\w./-]*\w)", text)
    file = missing.group(1) if missing else ""
    explanations = (  # the first that holds
        (
            "GatedRepoError" in kinds or "gated repo" in low or "403" in codes,
            f"the model {name} is gated: accept its conditions on {page}, then log in with `hf auth login` (or set "
            "HF_TOKEN), and run the same command again.",
        ),
        (
            "RevisionNotFoundError" in kinds or "is not a valid git identifier" in low,
            f"the model {name} has no revision '{revision}': give a branch, tag or commit that {page} lists.",
        ),
        (
            "RepositoryNotFoundError" in kinds or "is not a valid model identifier" in low or "401" in codes,
            f"there is no folder {name}, and no model of that name on the Hub, or it is private: check the spelling on "
            f"{page}, and log in with `hf auth login` if it is yours.",
        ),
        (
            kinds & AWAY or "couldn't connect" in low or "offline mode" in low,
            f"the model {name} could not be reached on the Hub and is not in the cache: check the network (and that "
            "HF_HUB_OFFLINE is not set), or give a folder that holds it.",
        ),
        (
            "custom code" in low or "trust_remote_code" in low,
            f"the model {name} is code of its own, which is never run: give one that transformers itself knows.",
        ),
        (
            file == "config.json" or ("unrecognized model" in low and no_config),
            f"{name} holds no model of transformers: it has no config.json"
            + (f"; did you mean {folder / 'export'}?" if (folder / "export" / "config.json").exists() else "."),
        ),
        (
            "does not recognize this architecture" in low or "unrecognized model" in low,
            f"{name} is of a kind{kind} that the installed transformers does not know: check that it is a model, or "
            "install a newer transformers.",
        ),
        *_weights_explanations(error, name, file),
    )
    other = (
        f"the model {name} could not be loaded ({text[:300].rstrip('.')}). If its files are damaged, get them again; "
    )
    other += "otherwise give another folder or id."
    return next((explanation for holds, explanation in explanations if holds), other)


def _weights_explanations(error: Exception, name: str, file: str) -> tuple[tuple[Any, str], ...]:
    """(whether it holds, what is wrong) for the files of a model's folder, of which `file` is missing ("": none)."""
    low, kinds = " ".join(str(error).split()).lower(), {type(e).__name__ for e in _chain(error)}
    return (
        (
            file.endswith((".safetensors", ".bin")) or "no file named model.safetensors" in low,
            f"{name} has no weights in safetensors files. Pickled weights (pytorch_model.bin) are never read, as they "
            "can run code: ask its publishers for safetensors, or load it once elsewhere and `save_pretrained` it.",
        ),
        (
            "SafetensorError" in kinds or "deserializing header" in low,
            f"the weights of {name} cannot be read: the file is damaged or cut short. Get it again.",
        ),
        (file, f"the model {name} is incomplete: it has no {file}."),
        (
            isinstance(error, RuntimeError) and "size mismatch" in low,
            f"the weights of {name} do not fit its own config.json; it is damaged, or not all of one model.",
        ),
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _like(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def set_memory_options(bundle: Any, parts: Sequence[Any]) -> None:
    """Gradient checkpointing of the model's transformers `parts` where the family asks for it, and their layers that
    FSDP2 shards; then training mode. After adapters and freezing."""
    family, model = bundle.family, bundle.model
    if family.gradient_checkpointing:
        for part in parts:
            if not part.supports_gradient_checkpointing:
                log.warning("model.gradient_checkpointing: %s does not support it.", type(part).__name__)
                continue
            part.gradient_checkpointing_enable({"use_reentrant": False})
    layers = {name for part in parts for name in part._no_split_modules or ()}
    bundle.part_layers = tuple(sorted(layers & {type(module).__name__ for module in model.modules()}))
    model.train()
