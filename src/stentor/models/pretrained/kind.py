"""Base of the classes that say how one of transformers' models works: its prompt, its batches, its answers.

A family of `TransformersFamily` has a class of them for each `model_type`, in a module of its folder `kinds`.
"""

from __future__ import annotations

import json
import pkgutil
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from stentor.errors import ConfigError
from stentor.section.contract import REGISTERED, file_of

Entry = TypeVar("Entry")


class Kinds(dict[str, Entry]):
    """Facts about each model of a family, by the `model_type` of transformers' config."""

    def __init__(self, package: str | None = None, **table: Entry):
        """`package`: modules of classes that register themselves when they are imported."""
        super().__init__(table)
        self.package = package

    def complete(self) -> Kinds[Entry]:
        """All of them, the modules of the package imported."""
        if self.package is not None:
            for module in pkgutil.iter_modules(import_module(self.package).__path__):
                import_module(f"{self.package}.{module.name}")
        return self

    def of(self, model_type: str, refusal: str) -> Entry:
        """The entry of a model. Raises ConfigError with the sentence `refusal`, whose `{known}` is replaced."""
        if model_type not in self:
            raise ConfigError(refusal.replace("{known}", ", ".join(self)))
        return self[model_type]


class TransformersKind(ABC):
    """One model of a family, as facts (class attributes) and hooks around transformers' own processor, `hf`.

    A family's own base class has a table `kinds`, and a `settle` that fills an untrained model's config.
    """

    model_types: ClassVar[tuple[str, ...]] = ()
    """`model_type` of the configs of transformers that it serves."""
    architecture: ClassVar[str]
    """transformers' class of the whole model."""
    tokenizer_holds: ClassVar[str]
    """Required content of the folder `tokenizer`, for messages."""
    fixed: ClassVar[tuple[str, ...]] = ()
    """Globs on names of parameters that are never trained and always in float32, such as tables of sinusoids, and those
    of a codec inside the model."""
    kinds: ClassVar[Kinds[Any]]
    """All classes of the family that have `model_types`, by these."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for name in cls.model_types if "model_types" in vars(cls) else ():
            cls.kinds[name] = cls
            REGISTERED.append(file_of(cls))

    @classmethod
    @abstractmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        """transformers' processor of a folder or Hub id, or what stands for it, with `tokenizer`; `config` are keys of
        the model's config. Raises OSError, ValueError or ConfigError when it cannot be had."""

    @classmethod
    def inspect(cls, config: Any) -> None:
        """Raise ConfigError for a transformers config that cannot be worked with."""
        return


class ProcessorFiles:
    """A tokenizer and the files of its processor, for processors that transformers makes only with torchaudio: what
    they do with audio is done here, and their settings are written as they were read."""

    NAMES: tuple[str, ...] = ("processor_config.json", "preprocessor_config.json")
    audio_token: str

    def __init__(self, tokenizer: Any, files: dict[str, dict[str, Any]]):
        """`files`: contents by name, of those of `NAMES` that there are."""
        self.tokenizer, self.files = tokenizer, files
        self.chat_template = tokenizer.chat_template

    @classmethod
    def from_pretrained(cls, name: str, trust_remote_code: bool = False, **options: Any) -> Any:
        """Config of a folder or Hub id. Raises OSError or ValueError when it cannot be read."""
        from transformers import AutoTokenizer
        from transformers.utils import cached_file

        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
        revision = {"revision": options["revision"]} if "revision" in options else {}
        paths = {
            file: cached_file(name, file, _raise_exceptions_for_missing_entries=False, **revision) for file in cls.NAMES
        }
        return cls(tokenizer, {file: json.loads(Path(path).read_text("utf-8")) for file, path in paths.items() if path})

    def save_pretrained(self, folder: Path) -> None:
        """Write the files of tokenizer and processor."""
        self.tokenizer.save_pretrained(folder)
        for file, content in self.files.items():
            (folder / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
