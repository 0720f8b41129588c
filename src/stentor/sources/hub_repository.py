"""A data set's repository on the Hub: its configurations and their splits, from one request and no download."""

import re
import time
from dataclasses import dataclass
from functools import lru_cache

from stentor.errors import ConfigError
from stentor.sources.hub_open import AWAY
from stentor.sources.hub_presets import EXPORT

SECONDS = 8.0
"""Seconds that the Hub may take to answer."""
SPLIT = re.compile(r"(?<![a-z])(?:(train(?:ing)?)|(valid(?:ation)?|dev|val)|(test(?:ing)?))(?![a-z])", re.I)
"""A split in the path of a file, as `datasets` finds it."""


@dataclass(frozen=True)
class HubRepository:
    """The parts of a data set."""

    configs: dict[str, tuple[str, ...]]
    """Configuration -> its splits."""
    revision: str | None = None
    """The branch to read. None: the main one."""

    @property
    def default(self) -> str | None:
        """The configuration to take where none is named. None: one has to be."""
        return next((c for c in self.configs if c == "default" or len(self.configs) == 1), None)


def hub_repository(name: str) -> HubRepository | None:
    """The parts of a data set; None where the Hub does not answer: both are remembered for a minute. Raises
    `ConfigError` for one that is not there, gated, or only a program without a copy of its data."""
    return _asked(name, time.monotonic() // 60)


@lru_cache(maxsize=64)
def _asked(name: str, minute: float) -> HubRepository | None:
    from huggingface_hub import errors

    try:
        return _found(name)
    except errors.GatedRepoError:
        page = f"https://huggingface.co/datasets/{name}"
        problem = f"{name} is gated: accept its conditions on {page} and sign in to the Hub with the account that did."
    except errors.RepositoryNotFoundError:
        problem = (
            f"There is no data set {name} on the Hub, or it is private: check the spelling, sign in if it is yours."
        )
    except errors.RevisionNotFoundError:
        problem = f"{name} is a program, which is never run: look for the same recordings as a set of parquet files."
    except Exception as error:
        if isinstance(error, errors.HfHubHTTPError) or {kind.__name__ for kind in type(error).__mro__} & AWAY:
            return None
        raise
    raise ConfigError(problem)


def _found(name: str) -> HubRepository:
    from huggingface_hub import HfApi

    api = HfApi()
    info = api.dataset_info(name, timeout=SECONDS)
    if info.gated:
        api.auth_check(name, repo_type="dataset")
    files = [file.rfilename for file in info.siblings or ()]
    if f"{name.rpartition('/')[2]}.py" in files:
        copied = api.dataset_info(name, revision=EXPORT, timeout=SECONDS).siblings or ()
        places = [file.rfilename.split("/") for file in copied if file.rfilename.count("/") > 1]
        return HubRepository(
            {c: tuple({p[1].removeprefix("partial-"): 0 for p in places if p[0] == c}) for c, *_ in places}, EXPORT
        )
    card = info.card_data.to_dict() if info.card_data else {}
    found = {match.lastindex or 1 for file in files if (match := SPLIT.search(file))} or {1}
    names = tuple(("train", "validation", "test")[number - 1] for number in sorted(found))
    facts = card.get("dataset_info") or []
    told = {
        str(entry.get("config_name", "default")): tuple(str(split["name"]) for split in entry.get("splits") or ())
        for entry in (facts if isinstance(facts, list) else [facts])
    }
    configs = {}
    for entry in card.get("configs") or ():
        config, data = str(entry.get("config_name", "default")), entry.get("data_files")
        stated = tuple(str(part["split"]) for part in data if "split" in part) if isinstance(data, list) else ()
        configs[config] = stated or told.get(config) or (("train",) if data else names)
    return HubRepository(configs or told or {"default": names})
