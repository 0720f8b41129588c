"""VoxLM's checkpoints as speech LLMs of the same function.

VoxLM maps each encoder frame by two linear layers and joins neighbours by a convolution. The second layer and the
convolution are one linear map, so that the projector `mlp` holds all of it. The learned vectors around the audio become
embeddings of the tokens that VoxLM adds for them and never reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.models.encoders.load import encoder_geometry
from stentor.models.pretrained.load import part_config
from stentor.models.pretrained.lora import base_name, is_adapter
from stentor.models.pretrained.parts import PARTS
from stentor.models.pretrained.pickled import PlainObject, read_checkpoint
from stentor.models.pretrained.weights import put_adapters, read_json
from stentor.models.speech_llm.build import assemble, own_tokenizer
from stentor.models.speech_llm.config import SpeechLLM
from stentor.models.speech_llm.processor import SpeechLLMProcessor

FILES = ("model.safetensors", "model.pt", "best_phase2.pt", "best.pt")
"""Names of checkpoints in a folder, the first of which is read."""
CLASSES = ("VoxLMConfig", "QwenSTTConfig")
TOKENS = {"audio_start_token": "<|audio|>", "audio_end_token": "<|/audio|>", "transcribe_token": "<|transcribe|>"}
"""Settings with the tokens that VoxLM adds, in their order, and the usual ones."""
DEFAULTS = {**TOKENS, "lora_alpha": 32, "lora_dropout": 0.05, "projection_dropout": 0.1}
"""VoxLM's settings that an import needs."""
LEFT_OUT = {
    "audio_encoder.whisper.decoder.": "Whisper's decoder, which VoxLM never uses",
    "alignment_module.": "the alignment module, which works otherwise here: train the task `words` for word times",
    "timestamp_head.": "the heads of VoxLM's first version",
    "confidence_head.": "the heads of VoxLM's first version",
}
"""Beginnings of the names of tensors without a counterpart: what they are."""
PROJECTION = "audio_projection.projection"
OWN = (
    "audio_start_embed",
    "audio_end_embed",
    *(f"{PROJECTION}.{n}.{kind}" for n in "03" for kind in ("weight", "bias")),
)
"""Tensors that each checkpoint has."""


@dataclass
class VoxLMCheckpoint:
    """A checkpoint: its tensors, and the settings of the model that wrote it."""

    file: Path
    tensors: dict[str, Tensor]
    settings: dict[str, Any]

    @property
    def tokens(self) -> list[str]:
        """The tokens that VoxLM adds: start and end of audio, start of the transcript."""
        return [self.settings[name] for name in TOKENS]

    @property
    def width(self) -> int:
        """Width of the language model."""
        return len(self.tensors[f"{PROJECTION}.0.bias"])


def read(path: Path) -> VoxLMCheckpoint:
    """The checkpoint at a path: `model.pt` or another file of VoxLM's training, or a folder with one of the `FILES`.
    Settings are those in the checkpoint and in config.json beside it. Raises ConfigError."""
    file = next((path / name for name in FILES if (path / name).is_file()), path)
    if not file.is_file():
        there = f"holds none of {', '.join(FILES)}" if path.is_dir() else "does not exist"
        raise ConfigError(f"{path} {there}; get a published checkpoint with `hf download OWNER/NAME --local-dir DIR`.")
    beside, stored = file.with_name("config.json"), None
    try:
        settings = read_json(beside) if beside.is_file() else {}
        if file.suffix == ".safetensors":
            tensors = load_file(file)
        else:
            content = read_checkpoint(file, CLASSES)
            tensors, stored = content.get("model_state_dict", content), content.get("config")
    except (SafetensorError, ValueError, OSError) as error:
        raise ConfigError(f"{file} or {beside} is damaged ({error}): get it again.") from None
    tensors = {name.replace("_orig_mod.", ""): tensor for name, tensor in tensors.items()}  # of torch.compile
    if absent := [name for name in OWN if name not in tensors]:
        raise ConfigError(f"{file} is no checkpoint of VoxLM: it has no tensor {absent[0]}.")
    settings |= vars(stored) if isinstance(stored, PlainObject) else stored or {}
    settings = DEFAULTS | {name: value for name, value in settings.items() if value is not None}
    settings.setdefault("audio_encoder", settings.get("whisper_model"))
    if missing := [key for key in ("audio_encoder", "llm_model") if not settings.get(key)]:
        raise ConfigError(
            f"{file}: {' and '.join(missing)} are not known: write them to {beside} (Hub ids or folders)."
        )
    return VoxLMCheckpoint(file, tensors, settings)


def imported(checkpoint: VoxLMCheckpoint) -> tuple[Bundle, list[str]]:
    """A bundle of the checkpoint, to be saved, and what is not in it, a sentence each. Raises ConfigError."""
    weights, tensors = projector(checkpoint), checkpoint.tensors
    for name, tensor in tensors.items():
        if name.startswith(("audio_encoder.encoder.", "llm.")):
            name = name.removeprefix("audio_encoder.").replace("llm.base_model.model.", "llm.")
            weights[base_name(name)] = tensor
    adapters = {n.replace(".default.", "."): weights.pop(n) for n in list(weights) if is_adapter(n)}
    family = section(checkpoint, len(weights["projector.linear1.bias"]) // checkpoint.width, adapters)
    encoder_config, llm_config = part_config(family.encoder, "encoder"), part_config(family.llm, "language model")
    shape = encoder_geometry(family.encoder, encoder_config)
    factor = round(shape.frame_rate / family.projector.rate)
    if shape.frames(shape.steps(0)) % factor:
        raise ConfigError(f"{checkpoint.file}: its downsample_factor {factor} drops frames; it cannot be imported.")
    processor = SpeechLLMProcessor(tokenizer(checkpoint, family), shape, factor, family.prompt)
    llm_config.vocab_size, llm_config.tie_word_embeddings = len(processor.tokenizer), False
    bare = {part: getattr(family, part).model_copy(update={"source": None}) for part in PARTS}
    with torch.device("meta"):
        bundle = assemble(family.model_copy(update=bare), processor, encoder_config, llm_config)
    bundle.family = family
    mark_audio(bundle, checkpoint, weights)
    load_whole(bundle.model, weights, f"{checkpoint.file} is not of {family.encoder.source} and {family.llm.source}")
    if adapters:
        put_adapters(bundle.model, adapters, family.lora)
    left = Counter(what for name in tensors for begin, what in LEFT_OUT.items() if name.startswith(begin))
    return bundle, [f"{what} ({count} tensors)" for what, count in left.items()]


def load_whole(model: nn.Module, weights: dict[str, Tensor], problem: str) -> None:
    """Give a model its weights, all of them. Raises ConfigError, which begins with the `problem`."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    present = {name: tensor.shape for name, tensor in weights.items()}
    if wrong := sorted({name for name, _ in shapes.items() ^ present.items()}):
        there, here = (list(shape) if shape else "missing" for shape in (present.get(wrong[0]), shapes.get(wrong[0])))
        raise ConfigError(f"{problem}: {len(wrong)} tensors differ, such as {wrong[0]}: {there} there, {here} here.")
    model.load_state_dict(weights, assign=True)


def projector(checkpoint: VoxLMCheckpoint) -> dict[str, Tensor]:
    """Weights of the projector `mlp` that does what VoxLM's two layers and its convolution do."""
    tensors = {
        name.partition(".")[2]: tensor.double()
        for name, tensor in checkpoint.tensors.items()
        if name.startswith("audio_projection.")
    }
    w1, w2 = tensors["projection.0.weight"], tensors["projection.3.weight"]
    conv = tensors.get("downsample.weight", torch.eye(len(w2), dtype=torch.double)[..., None])
    steps = conv.unbind(-1)
    bias = conv.sum(-1) @ tensors["projection.3.bias"] + tensors.get("downsample.bias", torch.zeros(len(w2)))
    weights = {
        "linear1.weight": torch.block_diag(*[w1] * len(steps)),
        "linear1.bias": tensors["projection.0.bias"].repeat(len(steps)),
        "linear2.weight": torch.cat([step @ w2 for step in steps], 1),
        "linear2.bias": bias,
    }
    return {f"projector.{name}": tensor.float() for name, tensor in weights.items()}


def section(checkpoint: VoxLMCheckpoint, factor: int, adapters: dict[str, Tensor]) -> SpeechLLM:
    """The family's section."""
    settings, (start, end, transcribe), lora = checkpoint.settings, checkpoint.tokens, None
    if adapters:
        targets = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in adapters})
        rank = next(len(tensor) for name, tensor in adapters.items() if ".lora_A." in name)
        lora = {"rank": rank, "alpha": settings["lora_alpha"], "dropout": settings["lora_dropout"]}
        lora["targets"] = [f"llm.*.{target}" for target in targets]
    dropout, hidden = settings["projection_dropout"], factor * checkpoint.width
    values = {
        "encoder": {"from": settings["audio_encoder"], "window": "30s_whole"},
        "projector": {"rate": 50 / factor, "hidden": hidden, "dropout": dropout},
        "llm": {"from": settings["llm_model"]},
        "prompt": {"language": False, "context": False, "audio_start": start, "audio_end": end + transcribe},
        "lora": lora,
        "freeze": ["encoder.*"],
    }
    return SpeechLLM.model_validate(values)


def tokenizer(checkpoint: VoxLMCheckpoint, family: SpeechLLM) -> Any:
    """The language model's tokenizer with the tokens that VoxLM adds. Raises ConfigError when it has another size than
    the output layer."""
    tokenizer = own_tokenizer(family)
    if tokenizer.pad_token_id == tokenizer.eos_token_id:  # VoxLM then takes another token for padding
        pad = "<|fim_pad|>"
        tokenizer.add_special_tokens({"pad_token": pad if pad in tokenizer.get_vocab() else "<|pad|>"})
    tokenizer.add_tokens(checkpoint.tokens, special_tokens=True)
    heads = (t for n, t in checkpoint.tensors.items() if n.startswith("llm.") and n.endswith("lm_head.weight"))
    if (rows := next(map(len, heads), len(tokenizer))) != len(tokenizer):
        raise ConfigError(
            f"{checkpoint.file}: it writes {rows} tokens, and the tokenizer of {family.llm.source} with VoxLM's "
            f"own has {len(tokenizer)}: was it trained from this language model?"
        )
    return tokenizer


def mark_audio(bundle: Bundle, checkpoint: VoxLMCheckpoint, weights: dict[str, Tensor]) -> None:
    """Put the learned vectors around the audio in the place of the embeddings of their tokens. The output layer keeps
    its own rows, where the two are one in VoxLM."""
    model, tokens = bundle.model, bundle.processor.tokenizer
    embedding, head = model.llm.get_input_embeddings(), model.llm.get_output_embeddings()
    if type(embedding) is not nn.Embedding:
        kind = model.llm.config.model_type
        raise ConfigError(f"{checkpoint.file}: {kind} scales its embeddings; such a model cannot be imported.")
    names = {parameter: name for name, parameter in model.named_parameters()}
    rows = weights.get(names[embedding.weight])
    if rows is None:
        return  # `load_whole` says so
    weights.setdefault(names[head.weight], rows)
    weights[names[embedding.weight]] = rows = rows.clone()
    for token, vector in zip(checkpoint.tokens, ("audio_start_embed", "audio_end_embed")):
        rows[tokens.convert_tokens_to_ids(token)] = checkpoint.tensors[vector].to(rows.dtype)
