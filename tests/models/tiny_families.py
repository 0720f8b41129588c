"""A tiny model of every kind in every family: how it is built, items for it, and what it can do. test_contract.py holds
for each of them; a further kind is one entry of `KINDS`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tiny_audio_llm
import tiny_ctc
import tiny_frame_grid
import tiny_omnivoice
import tiny_seq2seq
import tiny_speech_llm
import tiny_transducers
import tiny_tts
import tiny_tts_frames
import tiny_turns
import torch
from tiny_audio_llms import TINY

from stentor.data.batch import Example
from stentor.losses.base import Loss
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.tasks.base import Task

TEXTS = ("one two three", "nine eight", "zero zero seven")
RANKS = {"rank": 2, "alpha": 4, "dropout": 0.0}
TERMS = {"ctc": "ctc", "rnnt": "rnnt", "tdt": "tdt", "times": {"type": "smooth_l1", "sigmoid": False}}
"""Losses of the terms that are no cross entropy."""


@dataclass(frozen=True)
class Kind:
    """A kind of model. `origin` makes the keys of `model:` for untrained weights, and may write to a folder."""

    origin: Callable[[Path], dict[str, Any]]
    items: Callable[[Bundle], list[Example]]
    keys: dict[str, Any]
    """Further keys of `model:`, the family's name among them."""
    terms: tuple[str, ...] = ("text",)
    task: str = "transcribe"
    lora: dict[str, Any] | None = None
    """None: it takes no adapters."""
    from_base: bool = True
    """Whether `model.from` takes an export."""
    apart: bool = True
    """Whether adapters on a base that can be had are exported alone."""
    checkpointed: bool = True
    """Whether adapters are trained with recomputed activations; transformers writes into the inputs of CSM's depth
    decoder, which fails where they get gradients."""
    idle: tuple[str, ...] = ()
    """Ends of the names of weights that take part in other batches alone."""
    decodings: tuple[dict[str, Any], ...] = field(default=({},))
    """Keys of the task with which a batch is answered as its items are; none where the task answers otherwise."""

    def build(
        self, folder: Path, *, seed: int = 0, texts: Sequence[str] = TEXTS, made: Path | None = None, **keys: Any
    ) -> Bundle:
        """A bundle in evaluation mode with weights from `seed`, or `from` an export."""
        origin = {} if "from" in keys else self.origin(folder)
        family = Family.model_validate({**self.keys, **origin, **keys})
        torch.manual_seed(seed)
        bundle = family.build(TaskRequirements(self.task, self.terms, lambda: iter(texts), resumed_export=made))
        bundle.model.eval()
        return bundle

    def predict(self, bundle: Bundle, items: list[Example], **keys: Any) -> list[dict[str, Any]]:
        return Task.model_validate({"type": self.task, **keys}).predict(bundle, items)


def loss(bundle: Bundle, items: list[Example]) -> torch.Tensor:
    """Summed losses of the items in one batch."""
    outputs = bundle.model(**bundle.processor.collate(items).inputs)
    return sum(
        term["loss"] if "loss" in term else Loss.model_validate(TERMS.get(name, "cross_entropy")).sum(**term)
        for name, term in outputs.items()
    )


def gradients(bundle: Bundle, items: list[Example]) -> dict[str, torch.Tensor]:
    """Gradients in training mode by parameter; what is drawn at random is drawn the same each time."""
    bundle.model.train()
    torch.manual_seed(1)
    loss(bundle, items).backward()
    return {name: p.grad for name, p in bundle.model.named_parameters() if p.grad is not None}


def trainable(bundle: Bundle) -> set[str]:
    return {name for name, p in bundle.model.named_parameters() if p.requires_grad}


def shake(bundle: Bundle, size: float = 0.1, seed: int = 1, only: Callable[[str], bool] = bool) -> Bundle:
    """Change what is trained, as training would."""
    torch.manual_seed(seed)
    for name, parameter in bundle.model.named_parameters():
        if parameter.requires_grad and only(name):
            parameter.data.add_(size * torch.randn_like(parameter))
    return bundle


def save(bundle: Bundle, folder: Path) -> Path:
    """An export, as the trainer writes it."""
    state = bundle.model.state_dict()
    bundle.family.save(bundle, {n: state[n].clone() for n in bundle.family.exported_tensor_names(bundle)}, folder)
    return folder


def config_and(write: Callable[[Path], Path], config: dict[str, Any], folder: Path) -> dict[str, Any]:
    return {"config": config, "tokenizer": str(write(folder))}


def clips(bundle: Bundle, *seconds: float, language: str | None = None) -> list[Example]:
    """Noise with texts."""
    rng, rate = np.random.default_rng(0), bundle.processor.sample_rate
    audio = [
        (0.1 * rng.standard_normal(round(s * rate)) + 0.01).astype(np.float32) for s in seconds or (1.3, 0.6, 0.97)
    ]
    return [Example(str(i), clip, text, language) for i, (clip, text) in enumerate(zip(audio, TEXTS))]


def language_models(bundle: Bundle) -> list[Example]:
    return [Example(str(i), None, text) for i, text in enumerate(TEXTS)]


AUDIO_LLM = {"type": "audio_llm", "max_text_tokens": 64, "token_rate": 20.0}
TURNS = {**AUDIO_LLM, "max_text_tokens": 400}
TRANSFORMER = {
    "type": "transformer",
    "shared": {"d_model": 32, "layers": 2, "heads": 2, "dropout": 0.2},
    "features": {"num_mel_bins": 20, "stack": 4, "subsample": 4},
}
SPEECH_LLM = {
    "type": "speech_llm",
    "llm": {"config": tiny_speech_llm.LLMS["qwen2"]},
    "tokenizer": {"type": "characters"},
    "prompt": {"instruction": None},
    "ctc": {},
}
SPEAKS = {"terms": ("codes",), "task": "speak", "decodings": ()}
NO_BASE = {"from_base": False, "apart": False}
TRANSDUCER_LORA = {**RANKS, "targets": ["encoder.*_proj", "*.linear?", "joint.head"]}

KINDS = {
    **{
        name: Kind(
            partial(config_and, tiny.write, tiny.config),
            lambda _: tiny_audio_llm.examples((0.5, 2.0)),
            AUDIO_LLM,
            lora=tiny_audio_llm.LORA,
        )
        for name, tiny in TINY.items()
    },
    **{
        name: Kind(origin, lambda _: list(tiny_frame_grid.ITEMS), {"type": "audio_llm"}, lora=RANKS)
        for name, origin in {
            "voxtral_realtime": partial(config_and, tiny_frame_grid.write_tekken, tiny_frame_grid.REALTIME),
            "kyutai_speech_to_text": lambda folder: {"from": str(tiny_frame_grid.write_kyutai(folder))},
        }.items()
    },
    **{
        name: Kind(
            partial(config_and, partial(tiny_turns.write_processor, name), {"model_type": name, **config}),
            # Linear attention without its kernels writes slowly, so its clips are short.
            partial(tiny_turns.examples, seconds=(0.7, 1.9 if name == "nemo_speechlm" else 5.3)),
            TURNS,
            task="who_said_what",
            lora=tiny_audio_llm.LORA,
        )
        for name, config in tiny_turns.CONFIGS.items()
    },
    **{
        name: Kind(
            lambda _, config=config: {"config": config},
            lambda bundle: clips(bundle, 0.5, 1.2, 3.003, language="en"),
            {"type": "seq2seq"},
            lora=RANKS,
            decodings=({}, {"beams": 3}),
        )
        for name, config in tiny_seq2seq.CONFIGS.items()
    },
    **{
        f"ctc_{name}": Kind(
            lambda _, config=config: {"config": config},
            clips,
            {"type": "ctc"},
            terms=("ctc",),
            lora=RANKS,
            apart=False,
            decodings=({}, {"beams": 3}, {"hotwords": ["nine", "two one"], "hotword_strength": 2.0}),
        )
        for name, config in tiny_ctc.CONFIGS.items()
    },
    **{
        name: Kind(
            lambda folder, name=name: {"from": str(tiny_transducers.write(name, folder))},
            lambda _: tiny_transducers.examples(),
            {"type": "transducer"},
            terms=(tiny_transducers.term(name),),
            lora=TRANSDUCER_LORA,
        )
        for name in tiny_transducers.CONFIGS
    },
    "transducer": Kind(
        lambda _: tiny_transducers.OWN,
        clips,
        {},
        terms=("rnnt", "ctc", "times"),
        **tiny_transducers.OWN_LORA,
        **NO_BASE,
    ),
    "transformer_encoder": Kind(lambda _: {}, clips, {**TRANSFORMER, "kind": "encoder"}, terms=("ctc",), **NO_BASE),
    "transformer": Kind(
        lambda _: {}, clips, {**TRANSFORMER, "kind": "encoder_decoder"}, terms=("text", "ctc"), **NO_BASE
    ),
    "transformer_decoder": Kind(
        lambda _: {}, language_models, {**TRANSFORMER, "kind": "decoder"}, task="language", decodings=(), **NO_BASE
    ),
    "speech_llm": Kind(
        lambda _: {"encoder": {"config": tiny_speech_llm.ENCODERS["whisper"]}},
        clips,
        SPEECH_LLM,
        terms=("text", "ctc"),
        lora={**RANKS, "targets": ["llm.*.q_proj", "llm.*.v_proj"]},
        **NO_BASE,
    ),
    **{
        name: Kind(
            lambda folder, name=name: tiny_tts.source(name, folder, tiny_tts.CONFIGS[name]),
            tiny_tts.examples,
            {"type": "tts"},
            lora=RANKS,
            checkpointed=name != "csm",
            **SPEAKS,
        )
        for name in tiny_tts.CONFIGS
    },
    **{
        name: Kind(
            partial(config_and, partial(tiny_tts_frames.write, name), config),
            tiny_tts_frames.examples,
            {"type": "tts", "generation": {"temperature": 0.0}},
            lora=RANKS,
            idle=("audio_prompt_proj.weight",),  # of voices
            **SPEAKS,
        )
        for name, config in tiny_tts_frames.CONFIGS.items()
    },
    "omnivoice": Kind(
        lambda _: {"llm": {"config": tiny_omnivoice.LLMS["qwen3"]}},
        lambda _: tiny_omnivoice.examples(),
        {"type": "omnivoice", "text": {"type": "characters"}, "codebooks": 4, "entries": 12},
        lora=RANKS,
        **SPEAKS,
        **NO_BASE,
    ),
}
