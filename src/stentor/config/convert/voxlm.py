"""VoxLM's configs: a frozen Whisper encoder, a projector and a Qwen2 model with LoRA, trained on LibriSpeech."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stentor.config.convert import Converted, Draft, Given, read
from stentor.config.document import Mistake, Mistakes, Node, Place

# Values that our side reads from the models themselves or has no need of; they are kept as comments.
_IMPLIED = (
    "model.architecture_version", "model.audio_encoder_dim", "model.llm_dim", "model.effective_frame_rate",
    "model.max_audio_frames", "model.audio_start_token", "model.audio_end_token", "model.transcribe_token",
    "training.max_text_length", "output.final_model_dir", "device.gpu_ids",
)  # fmt: skip
_WORDS = (
    "model.alignment_num_layers", "model.alignment_num_heads", "model.alignment_dropout",
    "model.alignment_loss_weight", "model.alignment_interp_frames", "model.monotonicity_loss_weight",
    "model.alignment_heads", "model.median_filter_width", "model.confidence_aggregation",
    "model.confidence_temperature", "model.timestamp_loss_weight", "model.confidence_loss_weight",
    "data.timestamps_dir", "data.whisper_model", "data.max_wer",
)  # fmt: skip
_PLAIN = {
    "model.name": "name",
    "output.checkpoint_dir": "output",
    "training.phase1.epochs": "train.epochs",
    "training.phase1.gradient_accumulation": "train.accumulate",
    "training.phase1.learning_rate": "optim.lr",
    "training.phase1.weight_decay": "optim.weight_decay",
    "training.phase1.warmup_steps": "schedule.warmup_steps",
    "training.compile_model": "train.compile",
    "training.num_workers": "data.workers",
    "training.max_audio_length": "data.max_seconds",
    "device.type": "train.device",
}
_OTHERS = (
    "model.audio_encoder", "model.freeze_audio_encoder", "model.llm_model", "model.freeze_llm", "model.use_lora",
    "model.lora_r", "model.lora_alpha", "model.lora_dropout", "model.lora_target_modules", "model.projection_dropout",
    "model.downsample_factor", "model.frame_rate", "model.sample_rate", "training.phase1.batch_size",
    "training.use_amp", "data.data_dir", "data.train_split", "data.val_split", "output.use_wandb",
    "output.wandb_project",
)  # fmt: skip


def convert(path: Path) -> Converted:
    """A run file for the transcription phase; the word-time phase is kept as comments.

    Values that are not in the file are VoxLM's defaults. Raises `Mistakes` for values without a counterpart.
    """
    given = read(path, "_base_")
    draft = Draft(Place(0, 1, str(path)))
    name = given.take("model.name")
    draft.put("name", name or "voxlm")
    draft.put("output", given.take("output.checkpoint_dir"))
    draft.put("task", "transcribe")
    rate = _model(given, draft)
    _data(given, draft, rate)
    draft.put("optim", {"type": "adamw", "lr": 1e-4, "weight_decay": 0.01, "betas": [0.9, 0.999]})
    draft.put("schedule.type", "cosine")
    draft.put("train.epochs", 10)
    for theirs, ours in _PLAIN.items():
        draft.put(ours, given.take(theirs))
    amp = given.take("training.use_amp")
    draft.put("train.precision", "auto" if amp is None or _flag(amp, "training.use_amp") else "fp32")
    _tracking(given, draft)
    notes = _comments(given, draft)
    given.refuse_rest([*_PLAIN, *_OTHERS, *_IMPLIED, *_WORDS])
    text = draft.text(f"Converted from VoxLM's {path.name} by `stentor config convert voxlm`.")
    return Converted(str(draft.root.value["name"].plain()), text, tuple(notes))


def _model(given: Given, draft: Draft) -> float:
    """The section `model`; answers positions per second."""
    draft.put("model.type", "speech_llm")
    draft.put("model.encoder.from", given.take("model.audio_encoder") or "openai/whisper-small")
    # VoxLM pads every clip to 30 seconds.
    draft.put("model.encoder.window", "30s")
    frames, factor = given.take("model.frame_rate"), given.take("model.downsample_factor")
    rate = _number(frames, "model.frame_rate", 50) / _number(factor, "model.downsample_factor", 4)
    draft.put("model.projector", {"type": "conv", "rate": rate, "dropout": 0.1})
    draft.put("model.projector.dropout", given.take("model.projection_dropout"))
    draft.put("model.llm.from", given.take("model.llm_model") or "Qwen/Qwen2-1.5B")
    lora = _take_flag(given, "model.use_lora")
    theirs = {ours: given.take(f"model.lora_{key}") for key, ours in
              (("r", "rank"), ("alpha", "alpha"), ("dropout", "dropout"), ("target_modules", "targets"))}  # fmt: skip
    frozen = ["encoder.*"] if _take_flag(given, "model.freeze_audio_encoder") else []
    whole = _take_flag(given, "model.freeze_llm")
    if lora:
        draft.put("model.lora", {"rank": 16, "alpha": 32, "dropout": 0.05})
        for ours, node in theirs.items():
            if node is not None and node.value is not None:
                draft.put(f"model.lora.{ours}", _globs(node) if ours == "targets" else node)
    else:
        draft.keep("LoRA is off (model.use_lora); its values:",
                   [(f"model.lora.{k}", v) for k, v in theirs.items() if v is not None])  # fmt: skip
        frozen += ["llm.*"] if whole else []
    draft.put("model.freeze", frozen)
    rate_of_audio = given.take("model.sample_rate")
    if rate_of_audio is not None and rate_of_audio.plain() != 16000:
        raise Mistakes([Mistake(rate_of_audio.place, "'model.sample_rate' must be 16000, as the encoders need")])
    return rate


def _data(given: Given, draft: Draft, rate: float) -> None:
    folder = given.take("data.data_dir") or "./data"
    train, val = given.take("data.train_split") or "train-clean-100", given.take("data.val_split") or "dev-clean"
    for key, split, fallback in (("train", train, "train"), ("eval", val, "dev")):
        entry = f"data.{key}.0" if key == "train" else f"data.{key}.{_name(split, fallback)}"
        draft.put(f"{entry}.type", "corpus")
        draft.put(f"{entry}.name", "librispeech")
        draft.put(f"{entry}.from", folder)
        draft.put(f"{entry}.split", split)
    items, longest, text = (given.take("training.phase1.batch_size"), given.values.get("training.max_audio_length"),
                            given.values.get("training.max_text_length"))  # fmt: skip
    count = int(_number(items, "training.phase1.batch_size", 8))
    draft.put("data.max_items", items or count)
    # Room for a whole batch of the longest items, so that `max_items` alone decides, as VoxLM's batch size does.
    positions = _number(longest, "training.max_audio_length", 30) * rate
    positions += _number(text, "training.max_text_length", 448) + 32
    draft.put("data.batch_tokens", round(count * positions))
    draft.put("data.max_seconds", 30.0)


def _tracking(given: Given, draft: Draft) -> None:
    used, project = given.take("output.use_wandb"), given.take("output.wandb_project")
    if used is not None and _flag(used, "output.use_wandb"):
        draft.put("callbacks.0.type", "tracking")
        draft.put("callbacks.0.wandb.project", project or "voxlm")
    elif project is not None:
        draft.keep("Weights & Biases is off (output.use_wandb); its project:", [("output.wandb_project", project)])


def _comments(given: Given, draft: Draft) -> list[str]:
    implied = [(key, node) for key in _IMPLIED if (node := given.take(key)) is not None]
    draft.keep("Without a key here: read from the models, or not needed.", implied)
    words = [(key, node) for key in _WORDS if (node := given.take(key)) is not None]
    words += given.under("training.phase2")
    draft.keep("Word times (VoxLM's phase 2) are a task that Stentor does not have yet. Their values:", words)
    if not words:
        return []
    return ["phase 2 (word times) belongs to a task that does not exist yet; its values are kept as comments."]


def _globs(node: Node) -> Any:
    """LoRA targets are bare module names there, paths here."""
    if not isinstance(node.value, list):
        raise Mistakes([Mistake(node.place, "'model.lora_target_modules' must be a list of module names")])
    return Node([Node(f"llm.*.{item.value}", item.place) for item in node.value], node.place)


def _name(split: Any, fallback: str) -> str:
    text = str(split.plain() if isinstance(split, Node) else split)
    return f'"{text}"' if text.strip(".") else fallback


def _take_flag(given: Given, key: str) -> bool:
    """A switch that is on in VoxLM unless it is given."""
    node = given.take(key)
    return True if node is None else _flag(node, key)


def _flag(node: Node, key: str) -> bool:
    if not isinstance(node.value, bool):
        raise Mistakes([Mistake(node.place, f"'{key}' must be true or false")])
    return node.value


def _number(node: Node | None, key: str, default: float) -> float:
    if node is None:
        return default
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)) or node.value <= 0:
        raise Mistakes([Mistake(node.place, f"'{key}' must be a number above 0")])
    return node.value
