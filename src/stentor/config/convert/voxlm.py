"""VoxLM's configs: a frozen Whisper encoder, a projector and a Qwen2 model with LoRA, trained on LibriSpeech."""

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from stentor.config.convert.draft import Converted, Draft, ForeignConfig, positive, read
from stentor.config.document import Mistake, Mistakes, Node, Place

_UNSUPPORTED = (
    (
        "read from the models, or not needed",
        "{model.architecture_version,model.audio_encoder_dim,model.llm_dim,model.effective_frame_rate,"
        "model.max_audio_frames,model.audio_start_token,model.audio_end_token,model.transcribe_token,"
        "training.max_text_length,output.final_model_dir,device.gpu_ids}",
    ),
    ("ramps around a word, in 80 ms frames; `losses.alignment.blur` has seconds", "model.alignment_interp_frames"),
    ("all heads of the aligner take part", "model.alignment_heads"),
    ("the aligner decodes all words together, without a filter", "model.median_filter_width"),
    ("a word is as sure as its least probable token and its times", "model.confidence_aggregation"),
    ("the callback `calibrate` fits the confidences on held-out words", "model.confidence_temperature"),
    ("of VoxLM's first version", "model.timestamp_loss_weight"),
    ("of VoxLM's first version", "model.confidence_loss_weight"),
)
"""Values without a counterpart, which stay as comments: (reason, keys)."""
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
_STAGE_2 = {
    "model.alignment_num_layers": "model.aligner.layers",
    "model.alignment_num_heads": "model.aligner.heads",
    "model.alignment_dropout": "model.aligner.dropout",
    "model.monotonicity_loss_weight": "losses.alignment.monotonicity",
    "training.phase2.epochs": "train.epochs",
    "training.phase2.gradient_accumulation": "train.accumulate",
    "training.phase2.learning_rate": "optim.lr",
    "training.phase2.weight_decay": "optim.weight_decay",
    "training.phase2.warmup_steps": "schedule.warmup_steps",
}
"""Keys of phase 2 and their counterparts in the second stage."""


class Variant(NamedTuple):
    """A model that VoxLM knows by its name."""

    encoder: str
    llm: str
    rank: int = 16
    alpha: int = 32
    heads: int = 8


_LARGE = "openai/whisper-large-v3"
_VARIANTS = {
    "voxlm-0.5b": Variant("openai/whisper-tiny", "Qwen/Qwen2-0.5B"),
    "voxlm-2b": Variant("openai/whisper-small", "Qwen/Qwen2-1.5B"),
    "voxlm-4b-multilingual": Variant(f"{_LARGE}-turbo", "Qwen/Qwen2.5-3B"),
    "voxlm-9b-global": Variant(_LARGE, "Qwen/Qwen2.5-7B", 32, 64),
    "voxlm-9b-india": Variant("ai4bharat/indicwhisper-large-v2", "Qwen/Qwen2.5-7B", 32, 64),
    "voxlm-llama-8b": Variant(_LARGE, "meta-llama/Llama-3.1-8B-Instruct", 32, 64),
    "voxlm-phi-4": Variant(_LARGE, "microsoft/phi-4", 32, 64),
    "voxlm-gemma-9b": Variant(_LARGE, "google/gemma-2-9b-it", 32, 64),
    "voxlm-edge": Variant("openai/whisper-tiny", "Qwen/Qwen2.5-0.5B", 8, 32, 4),
    "qwen-stt-0.5b": Variant("openai/whisper-tiny", "Qwen/Qwen2-0.5B"),
    "qwen-stt-2b": Variant("openai/whisper-small", "Qwen/Qwen2-1.5B"),
    "qwen-stt-7b": Variant("openai/whisper-medium", "Qwen/Qwen2-7B"),
}
"""VoxLM's `MODEL_CONFIGS`: what stands behind a name, as its `--model` has it."""


class LibriSpeechPart(NamedTuple):
    """A part of LibriSpeech; values of the file, or VoxLM's defaults."""

    folder: Any
    split: Any


def convert(path: Path, instruction: str | None = None) -> Converted:
    """A run file with two stages: transcription, then words. `instruction` is VoxLM's `--instruction`. Values that are
    not in the file are those of the variant that its name means, or VoxLM's defaults. Raises `Mistakes` for values
    without a counterpart."""
    foreign = read(path, "_base_")
    draft = Draft(Place(0, 1, str(path)))
    name = foreign.take("model.name")
    draft.put("name", name or "voxlm")
    _fill_in(foreign, draft, name)
    draft.put("output", foreign.take("output.checkpoint_dir"))
    draft.put("task", "transcribe")
    positions = _model(foreign, draft)
    draft.put("model.prompt.instruction", instruction)
    sources = _data(foreign, draft, positions)
    draft.put("optim", {"type": "adamw", "lr": 1e-4, "weight_decay": 0.01, "betas": [0.9, 0.999]})
    draft.put("schedule.type", "cosine")
    draft.put("train.epochs", 10)
    draft.put_each(foreign, _PLAIN)
    draft.put("train.precision", "auto" if foreign.take_flag("training.use_amp", True) else "fp32")
    _tracking(foreign, draft)
    _words(foreign, draft, positions, sources)
    draft.comment_out_unsupported(foreign, _UNSUPPORTED)
    if mistakes := foreign.unknown():
        raise Mistakes(mistakes)
    return draft.converted(f"Converted from VoxLM's {path.name} by `stentor config convert voxlm`.", foreign)


def _fill_in(foreign: ForeignConfig, draft: Draft, name: Node | None) -> None:
    """Set what a file leaves to its name: encoder and language model, with the LoRA and heads that go with them."""
    parts = ("model.audio_encoder", "model.llm_model")
    missing = [key for key in parts if key not in foreign.values]
    if name is None or not missing:
        return
    variant = _VARIANTS.get(str(name.value))
    if variant is None:
        problem = f"'model.name' {name.plain()} is none of VoxLM's variants ({', '.join(_VARIANTS)})"
        raise Mistakes([Mistake(name.place, f"{problem}: give {' and '.join(missing)}", "model.name")])
    keys = (*parts, "model.lora_r", "model.lora_alpha", "model.alignment_num_heads")
    for key, value in zip(keys, variant, strict=True):
        foreign.values.setdefault(key, Node(value, name.place))
    models = " and ".join(str(foreign.values[key].plain()) for key in parts)
    draft.notes.append(f"filled in by the name {name.plain()}: {models}.")


def _model(foreign: ForeignConfig, draft: Draft) -> float:
    """The section `model`; returns the sequence positions of the longest item."""
    draft.put("model.type", "speech_llm")
    draft.put("model.encoder.from", foreign.take("model.audio_encoder") or "openai/whisper-small")
    # VoxLM pads every clip to 30 seconds.
    draft.put("model.encoder.window", "30s")
    frames, factor = foreign.take("model.frame_rate"), foreign.take("model.downsample_factor")
    rate = positive(frames, "model.frame_rate", 50) / positive(factor, "model.downsample_factor", 4)
    draft.put("model.projector", {"type": "conv", "rate": rate, "dropout": 0.1})
    draft.put("model.projector.dropout", foreign.take("model.projection_dropout"))
    draft.put("model.llm.from", foreign.take("model.llm_model") or "Qwen/Qwen2-1.5B")
    lora = foreign.take_flag("model.use_lora", True)
    theirs = {
        ours: foreign.take(f"model.lora_{key}")
        for key, ours in (("r", "rank"), ("alpha", "alpha"), ("dropout", "dropout"), ("target_modules", "targets"))
    }
    frozen = ["encoder.*"] if foreign.take_flag("model.freeze_audio_encoder", True) else []
    freeze_llm = foreign.take_flag("model.freeze_llm", True)
    if lora:
        draft.put("model.lora", {"rank": 16, "alpha": 32, "dropout": 0.05})
        for ours, node in theirs.items():
            if node is not None and node.value is not None:
                draft.put(f"model.lora.{ours}", _globs(node) if ours == "targets" else node)
    else:
        values = [(f"model.lora.{key}", node) for key, node in theirs.items()]
        draft.comment_out("LoRA is off (model.use_lora); its values:", values)
        frozen += ["llm.*"] if freeze_llm else []
    draft.put("model.freeze", frozen)
    rate_of_audio = foreign.take("model.sample_rate")
    if rate_of_audio is not None and rate_of_audio.plain() != 16000:
        raise Mistakes([Mistake(rate_of_audio.place, "'model.sample_rate' must be 16000, as the encoders need")])
    longest, text = (foreign.values.get(f"training.max_{what}_length") for what in ("audio", "text"))
    positions = positive(longest, "training.max_audio_length", 30) * rate
    return positions + positive(text, "training.max_text_length", 448) + 32


def _data(foreign: ForeignConfig, draft: Draft, positions: float) -> dict[str, LibriSpeechPart]:
    """The section `data`; returns the sources of training and scoring by their keys in `data`."""
    folder = foreign.take("data.data_dir") or "./data"
    train, val = foreign.take("data.train_split") or "train-clean-100", foreign.take("data.val_split") or "dev-clean"
    sources = {"train.0": LibriSpeechPart(folder, train), f"eval.{_name(val, 'dev')}": LibriSpeechPart(folder, val)}
    for key, source in sources.items():
        draft.put(f"data.{key}.type", "corpus")
        draft.put(f"data.{key}.name", "librispeech")
        draft.put(f"data.{key}.from", source.folder)
        draft.put(f"data.{key}.split", source.split)
        draft.put(f"data.{key}.options", {"normalize_text": "lower"})  # as VoxLM writes its texts
    _batch(foreign, draft, "training.phase1.batch_size", 8, "data", positions)
    draft.put("data.max_seconds", 30.0)
    return sources


def _batch(foreign: ForeignConfig, draft: Draft, key: str, default: int, ours: str, positions: float) -> None:
    """Room for a whole batch of the longest items, so that `max_items` alone decides, as VoxLM's batch size does."""
    items = foreign.take(key)
    count = int(positive(items, key, default))
    draft.put(f"{ours}.max_items", items or count)
    draft.put(f"{ours}.batch_tokens", round(count * positions))


def _words(foreign: ForeignConfig, draft: Draft, positions: float, sources: dict[str, LibriSpeechPart]) -> None:
    """The stages, and a note on how the word times that the second one reads are made."""
    draft.put("stages.0", {})
    second = "stages.1"
    draft.put(f"{second}.task", {"type": "words"})
    draft.put(f"{second}.model.aligner", {"layers": 2, "heads": 8, "dropout": 0.1})
    heads = int(positive(foreign.values.get("model.alignment_num_heads"), "model.alignment_num_heads", 8))
    if 128 % heads:  # a width of their own, where VoxLM's heads divide that of the language model
        draft.put(f"{second}.model.aligner.width", -(-128 // heads) * heads)
    manifests, commands = _timestamps(foreign, sources)
    draft.put(f"{second}.data.train", [])
    for key, manifest in manifests.items():
        draft.put(f"{second}.data.{key}", {"type": "jsonl", "path": manifest})
    _batch(foreign, draft, "training.phase2.batch_size", 16, f"{second}.data", positions)
    weight, older = foreign.take("training.phase2.alignment_weight"), foreign.take("model.alignment_loss_weight")
    alignment = {"type": "alignment", "weight": 1.0, "monotonicity": 0.1}
    draft.put(f"{second}.losses", {"text": {"type": "cross_entropy"}, "alignment": alignment})
    draft.put(f"{second}.losses.alignment.weight", weight or older)
    if weight is not None and older is not None and weight.plain() != older.plain():
        draft.comment_out("Phase 2 has a weight of its own, which counts:", [("model.alignment_loss_weight", older)])
    draft.put(f"{second}.optim.lr", 5e-5)
    draft.put(f"{second}.schedule", {"warmup_steps": None})
    draft.put(f"{second}.train", {"epochs": 5, "accumulate": 1})
    draft.put_each(foreign, _STAGE_2, f"{second}.")
    draft.comments += ["", "Stage 2 reads word times, which these commands write:", *(f"  {c}" for c in commands)]
    draft.comments += ["", "The alignment module begins untrained. It may want a higher lr than the rest, in stage 2:"]
    draft.comments += ['  optim.groups: [{params: ["aligner.*"], lr: 1.0e-3}]']
    draft.notes.append("stage 2 needs word times; make them first:\n  " + "\n  ".join(commands))


def _timestamps(foreign: ForeignConfig, sources: dict[str, LibriSpeechPart]) -> tuple[dict[str, str], list[str]]:
    """The manifest with the word times of each source, and the commands that write them."""
    timestamps = _plain(foreign.take("data.timestamps_dir") or "./data/timestamps")
    whisper = _plain(foreign.take("data.whisper_model") or "small")
    if "/" not in whisper:  # a name of the package openai-whisper, not a folder or Hub id
        whisper = f"openai/whisper-{'large-v3-turbo' if whisper == 'turbo' else whisper}"
    max_wer = positive(foreign.take("data.max_wer"), "data.max_wer", 0.1)
    manifests = {key: f"{timestamps}/{_plain(source.split)}.jsonl" for key, source in sources.items()}
    commands = []
    for key, source in sources.items():
        folder, split = (_quoted(_plain(value)) for value in source)
        data = f"type=corpus,name=librispeech,from={folder},split={split},options.normalize_text=lower"
        options = ["--to", manifests[key], "--engine", "whisper", "--model", whisper, "--max-wer", f"{max_wer:g}"]
        commands.append(shlex.join(["stentor", "prepare", "words", data, *options]))
    return manifests, commands


def _tracking(foreign: ForeignConfig, draft: Draft) -> None:
    project = foreign.take("output.wandb_project")
    if foreign.take_flag("output.use_wandb"):
        draft.put("callbacks.0.type", "tracking")
        draft.put("callbacks.0.wandb.project", project or "voxlm")
    else:
        title = "Weights & Biases is off (output.use_wandb); its project:"
        draft.comment_out(title, [("output.wandb_project", project)])


def _plain(value: Any) -> str:
    return str(value.plain() if isinstance(value, Node) else value)


def _quoted(value: str) -> str:
    """A value in the command line's grammar of a data source."""
    return json.dumps(value, ensure_ascii=False) if set(value) & set(",'\"[]{}#") else value


def _globs(node: Node) -> Any:
    """LoRA targets are bare module names there, paths here."""
    if not isinstance(node.value, list):
        raise Mistakes([Mistake(node.place, "'model.lora_target_modules' must be a list of module names")])
    return Node([Node(f"llm.*.{item.value}", item.place) for item in node.value], node.place)


def _name(split: Any, fallback: str) -> str:
    text = _plain(split)
    return f'"{text}"' if text.strip(".") else fallback
