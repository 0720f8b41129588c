"""Model families: each builds a model and its processor.

To add a family: one file here with a `Family` subclass that overrides `build`, `save`, `save_merged` and `load`, or a
folder whose build.py and export.py hold these functions (see `Family.implementation`). The model's `forward(**inputs)`
returns, for each loss term, the keyword arguments of that term's `Loss.sum`; the processor runs in loader workers and
must pickle.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.data.cut import Cut
from stentor.errors import ConfigError
from stentor.models.contracts import Capabilities, Processor, Recognizer
from stentor.section import Choice, Effect
from stentor.section.contract import place

if TYPE_CHECKING:
    import torch

    from stentor.losses.base import Loss
    from stentor.models.contracts import ServedTask

ONNX_CONFIG = "onnx_config.json"
"""Sizes, names and versions of an ONNX export."""
ONNX_FORMAT = 1
"""Version of the layout of an ONNX export; a reader refuses another."""
ONNX_INLINE = 1 << 30
"""Bytes of weights up to which a graph is one file; larger ones have NAME.onnx.data, as they must above 2 GB."""

EXPORT_FACTS = "export.json"
"""Facts of an export for another runtime: format, runtime, rows of the comparison."""
SETTINGS = "stentor"
"""Folder in an export whose config.json is the runtime's own, with the family's: config.json, processor files."""


@dataclass
class TaskRequirements:
    """Requirements of a task to the family that serves it."""

    task: str
    """The task's type name, for messages."""
    terms: tuple[str, ...] = ()
    """Loss terms that are configured: the model must return each from `forward`."""
    texts: Callable[[], Iterable[str]] | None = None
    """Training transcripts, for tokenizers and alphabets that are made from the data. None when loading an export."""
    cuts: Callable[[], Iterable[Cut]] | None = None
    """Training records, of a stream the first ones, for what is made from more than their texts, such as a codec that
    is fitted on their audio (`stentor.data.load_audio.load_audio`). Their audio is only read when it is asked for."""
    resumed_export: Path | None = None
    """Export of the checkpoint that training resumes from: what a family makes from the training data, such as a
    tokenizer, an alphabet or a codec, is taken from it, because its weights have a row for each entry. None: made from
    `texts` and `cuts`."""
    complete: bool = True
    """Whether `texts` and `cuts` give all of the training data and not only the first of it."""
    classes: int | None = None
    """Number of output classes, for tasks that label frames."""
    scores: tuple[str, ...] = ()
    """Outputs of a model that labels frames which the loss terms score: `logits`, `embeddings`, `hidden`."""
    codebook_weights: list[float] | None = None
    """Weights of a codec's codebooks in the loss, for models whose config names them. None: the usual ones."""
    instruct_from: str | None = None
    """Field of the records that describes the voice where they have no `instruct`. None: no field."""


class RandomFeatures:
    """A module whose own buffers are a random draw, such as the features of linear attention. The callback `redraw`
    draws them again; weights are not averaged over different draws."""

    fixed: bool = False
    """Whether the first draw is kept."""

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the buffers again, in place, from a generator on the CPU."""
        raise NotImplementedError


@dataclass
class Origin:
    """Origin of the weights of a model, found by building or loading it."""

    from_base: set[str] = field(default_factory=set)
    """Names of tensors that are unchanged from the bases."""
    commit: str | None = None
    """Commit of the base on the Hub, where a model has one base."""


@dataclass
class Bundle:
    """A model with its processor, as the engine, evaluation and inference use them."""

    model: Any
    """The `torch.nn.Module`."""
    processor: Any
    """The model's `Processor`."""
    family: Any
    """The `Family` that built it."""
    cache_encoder: Callable[[], AbstractContextManager[None]] = nullcontext
    """Inside, what is asked of the model about one batch may share its work, such as encoding the audio once. For
    inference only."""
    codebooks: int | None = None
    """Codebooks of the codec whose tokens the model predicts: losses have one term for each. None for other models."""
    origin: Origin = field(default_factory=Origin)
    part_layers: tuple[str, ...] = ()
    """Class names of the layers of pretrained parts."""

    @property
    def wrap_layers(self) -> tuple[str, ...]:
        """Class names of the layers that FSDP2 shards one by one; see `Family.wrap_layers`."""
        return self.part_layers or self.family.wrap_layers  # type: ignore[no-any-return]

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the model; a model that is no `Recognizer` has the defaults."""
        return self.model.capabilities if isinstance(self.model, Recognizer) else Capabilities()

    @property
    def traits(self) -> Processor:
        """The processor, whose declarations say what it can do. For one that is no `Processor`, the defaults."""
        return self.processor if isinstance(self.processor, Processor) else Processor()

    def parts(self) -> dict[str, torch.nn.Module]:
        """Named top-level parts of the model, for the table of trainable parameters."""
        return dict(self.model.named_children())


class Family(Choice):
    """One entry under `model:`."""

    init: str | None = None
    """Stentor export (a folder) to start from. Null: start from scratch, or from the pretrained base."""

    effects: ClassVar[Mapping[str, Effect]] = {
        "gradient_checkpointing": "none",
        **dict.fromkeys(("alphabet", "tokenizer", "text", "ctc"), "fixed"),
    }
    wrap_layers: ClassVar[tuple[str, ...]] = ()
    """Class names of the layers that FSDP2 shards one by one, where they are not those of pretrained parts. Empty: the
    engine refuses to shard, with a sentence."""
    tasks: ClassVar[tuple[str, ...]] = ()
    """Task types that this family serves."""
    has_accents: ClassVar[bool] = False
    """Whether its key `accents` decides about letters with accents that its alphabet lacks."""
    adapters_alone: ClassVar[bool] = False
    """Whether `lora` freezes everything but the adapters; otherwise the parts that have them."""
    layouts: ClassVar[tuple[str, ...]] = ("padded",)
    """Batch layouts that the model's forward understands: padded, packed."""
    hypotheses: ClassVar[tuple[str, ...]] = ()
    """Hypotheses that a model can generate in training for the sequence losses: `best`, the best texts of a beam
    search, and `sampled`, random samples. Its forward takes `hypotheses`, see `stentor.models.decoding.rescoring`."""
    implementation: ClassVar[str | None] = None
    """Package whose module `build` has `build(family, requirements)` and whose module `export` has `save`,
    `save_merged`, `load(family_class, folder, trainable)` and perhaps `exported_tensor_names`: what the methods of
    these names do. The modules import torch and are imported on first use. None: the family overrides the methods."""

    def recipe_name(self) -> str:
        """The name in recipes: the type or, for families of several pretrained models, the `model_type` of the
        model."""
        return self.type

    def layout(self) -> Literal["padded", "packed"]:
        """The layout that `data.layout: null` stands for."""
        return "padded"

    @classmethod
    def can_load(cls, config: dict[str, Any]) -> bool:
        """Whether `load` reads a model folder with this config.json. Families whose exports are plain transformers
        folders look at its `architectures`."""
        return bool(config.get("model_type") == cls.model_fields["type"].default)

    def losses(self, task: ServedTask) -> dict[str, Loss]:
        """The loss terms of a task where the config has no `losses:` section."""
        return task.losses()

    def incompatible_with(self, task: ServedTask) -> tuple[str, str] | None:
        """Return the reason why a model of these settings cannot serve a task that the family serves, as (key of the
        section, sentence). None when it can."""
        return None

    def decoding_options(self) -> frozenset[str]:
        """Options of a transcription call that a model of these settings supports: `beams`, `temperature`, and hints
        that `Processor.collate` reads: `context` (`Example.context`), `prompt` (`Example.extra["prompt"]`); `hotwords`:
        the model's `generate` takes a `bias` (`stentor.models.decoding.bias`)."""
        return frozenset({"beams", "temperature"})

    def writes(self, search: str) -> bool:
        """Whether a model of these settings writes this kind of `hypotheses`."""
        return search in self.hypotheses

    def translates(self) -> bool:
        """Whether a model of these settings writes a translation where `Example.extra["translate"]` is true (the task's
        key `translate`): it is asked for in the model's own prompt."""
        return False

    @classmethod
    def _module(cls, name: str) -> Any:
        if cls.implementation is None:
            raise ConfigError(f"{place(cls)} has neither the methods of a model family nor `implementation`.")
        return importlib.import_module(f"{cls.implementation}.{name}")

    def build(self, requirements: TaskRequirements) -> Bundle:
        """A model ready to train, with freezing and adapters applied. Raises ConfigError that says how to fix it."""
        return self._module("build").build(self, requirements)  # type: ignore[no-any-return]

    def exported_tensor_names(self, bundle: Bundle) -> set[str]:
        """Names of the tensors that an export holds: all, unless frozen weights can be had from where they came."""
        names = getattr(self._module("export"), "exported_tensor_names", None) if self.implementation else None
        return set(bundle.model.state_dict()) if names is None else names(bundle)

    def save(self, bundle: Bundle, state: dict[str, torch.Tensor], folder: Path) -> None:
        """Write an export: config.json, model.safetensors and/or adapter files, processor files.

        `state` maps the names of `exported_tensor_names` to CPU tensors (the unsharded, possibly averaged weights).
        Frozen weights that came from elsewhere are not among them; config.json says where they came from. For
        checkpoints it is called in a thread during training: look at names, shapes and settings of `bundle.model`, and
        leave its weights and `state_dict()` alone.
        """
        self._module("export").save(bundle, state, folder)

    def save_merged(self, bundle: Bundle, folder: Path) -> None:
        """Write an export that needs nothing else: adapters folded in, weights of the bases included."""
        self._module("export").save_merged(bundle, folder)

    @classmethod
    def load(cls, folder: Path, trainable: bool = False) -> Bundle:
        """The bundle of an export folder. With `trainable`, adapters stay apart and freezing is applied again."""
        return cls._module("export").load(cls, Path(folder), trainable)  # type: ignore[no-any-return]

    @classmethod
    def loadable(cls) -> bool:
        """Whether exports can be loaded: a plug-in may have no `load`."""
        overridden = any("load" in vars(c) for c in cls.__mro__ if c is not Family)
        return cls.implementation is not None or overridden
