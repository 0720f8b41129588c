"""VoxLM's configs: a frozen Whisper encoder, a projector and a Qwen2 model with LoRA, trained on LibriSpeech."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from stentor.config.convert.draft import Conversion, Converted, node_of, read, tables
from stentor.config.document import Mistake, Node

_TABLES = tables("voxlm")
_UNSUPPORTED: dict[str, str] = _TABLES["unsupported"]
"""Values without a counterpart, which stay as comments: the keys by the reason."""
_LORA = {"model.lora_r": "rank", "model.lora_alpha": "alpha", "model.lora_dropout": "dropout"}
_PLAIN, _STAGE_2 = (
    {**{f"training.phase{i}.{theirs}": ours for theirs, ours in _TABLES["phase"].items()}, **_TABLES[more]}
    for i, more in ((1, "plain"), (2, "stage_2"))
)
"""Keys of each phase and their counterparts in its stage."""

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_PHI_3 = dict.fromkeys(_PROJECTIONS[:3], "qkv_proj") | dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj")
_RENAMED = {
    r"phi-?[34](?!.*moe)": _PHI_3,
    r"phi-?[12]|phi$": {"o_proj": "dense"},
    r"opt": {"o_proj": "out_proj"},
    r"pythia|gpt-?_?neox|bloom|falcon(?!-?(3|h))": dict.fromkeys(_PROJECTIONS[:3], "query_key_value")
    | {"o_proj": "dense"},
}
"""Language models, by a pattern of their name, whose layers have other names than most: theirs for the usual ones."""


class Variant(NamedTuple):
    """A model that VoxLM knows by its name."""

    encoder: str
    llm: str
    rank: int = 16
    alpha: int = 32
    heads: int = 8


_VARIANTS = {name: Variant(**fields) for name, fields in _TABLES["variants"].items()}
"""VoxLM's `MODEL_CONFIGS`: what stands behind a name, as its `--model` has it."""


def convert(path: Path, instruction: str | None = None) -> Converted:
    """A run file with two stages: transcription, then words. `instruction` is VoxLM's `--instruction`. Values that are
    not in the file are those of the variant that its name means, or VoxLM's defaults. Raises `Mistakes` for values
    without a counterpart."""
    job = Conversion(read(path, "_base_"))
    name = job.take("model.name")
    job.put("name", name or "voxlm")
    _fill_in(job, name)
    job.move("output.checkpoint_dir", "output")
    job.put("task", "transcribe")
    positions = _model(job)
    job.put("model.prompt.instruction", instruction)
    sources = _data(job, positions)
    job.put("optim", {"type": "adamw", "lr": 1e-4, "weight_decay": 0.01, "betas": [0.9, 0.999]})
    job.put("schedule.type", "cosine")
    job.put("train.epochs", 10)
    job.move_each(_PLAIN)
    job.put("train.precision", "auto" if job.take_flag("training.use_amp", True) else "fp32")
    if job.take_flag("output.use_wandb"):
        job.put_callback("tracking", {"wandb.project": job.take("output.wandb_project") or "voxlm"})
    job.leave_out("Weights & Biases is off (output.use_wandb); its project:", "output.wandb_project")
    _words(job, positions, sources)
    job.leave_out_each(_UNSUPPORTED)
    return job.converted(f"Converted from VoxLM's {path.name} by `stentor config convert voxlm`.")


def _fill_in(job: Conversion, name: Node | None) -> None:
    """Set what a file leaves to its name: encoder and language model, with the LoRA and heads that go with them."""
    parts = ("model.audio_encoder", "model.llm_model")
    missing = [key for key in parts if key not in job.values]
    if name is None or not missing:
        return
    variant = _VARIANTS.get(str(name.value))
    if variant is None:
        problem = f"'model.name' {name.plain()} is none of VoxLM's variants ({', '.join(_VARIANTS)})"
        job.mistakes.append(Mistake(name.place, f"{problem}: give {' and '.join(missing)}", "model.name"))
        return
    keys = (*parts, "model.lora_r", "model.lora_alpha", "model.alignment_num_heads")
    for key, value in zip(keys, variant, strict=True):
        job.values.setdefault(key, Node(value, name.place))
    models = " and ".join(str(job.values[key].plain()) for key in parts)
    job.notes.append(f"filled in by the name {name.plain()}: {models}.")


def _model(job: Conversion) -> float:
    """The section `model`; returns the sequence positions of the longest item."""
    job.put("model.type", "speech_llm")
    job.move("model.audio_encoder", "model.encoder.from", "openai/whisper-small")
    # VoxLM pads every clip to 30 seconds. Other encoders than Whisper have no such window.
    job.put("model.encoder.window", "30s" if "whisper" in _kind(job.made("model.encoder.from")) else "natural")
    rate = job.take_number("model.frame_rate", 50) / job.take_number("model.downsample_factor", 4)
    job.put("model.projector", {"type": "conv", "rate": rate, "dropout": 0.1})
    job.move("model.projection_dropout", "model.projector.dropout")
    job.move("model.llm_model", "model.llm.from", "Qwen/Qwen2-1.5B")
    _lora(job)
    audio_rate = job.take("model.sample_rate")
    if audio_rate is not None and audio_rate.plain() != 16000:
        job.wrong(audio_rate, "model.sample_rate", "16000, as the encoders need")
    return job.number("training.max_audio_length", 30) * rate + job.number("training.max_text_length", 448) + 32


def _lora(job: Conversion) -> None:
    """Adapters, and what is frozen."""
    targets = "model.lora_target_modules"
    lora, frozen = job.take_flag("model.use_lora", True), job.take_flag("model.freeze_audio_encoder", True)
    llm_frozen = job.take_flag("model.freeze_llm", True) and not lora
    values = {ours: job.take(theirs) for theirs, ours in (_LORA | {targets: "targets"}).items()}
    if lora:
        job.put("model.lora", {"rank": 16, "alpha": 32, "dropout": 0.05})
        names = values.pop("targets")
        for ours, node in values.items():
            if node is not None and node.value is not None:
                job.put(f"model.lora.{ours}", node)
        job.put("model.lora.targets", _targets(job, names, targets))
    else:
        title = "LoRA is off (model.use_lora); its values:"
        job.comment_out(title, [(f"model.lora.{ours}", node) for ours, node in values.items()])
    job.put("model.freeze", ["encoder.*"] * frozen + ["llm.*"] * llm_frozen)
    if (device := job.values.get("device.type")) is None or device.plain() != "cpu":
        job.put("model.dtype", "bfloat16")  # of what is frozen, as VoxLM loads its language model on a GPU


def _targets(job: Conversion, modules: Node | None, key: str) -> Node | None:
    """The adapted layers, by the names that they have in this language model. None: the usual ones."""
    kind = _kind(job.made("model.llm.from"))
    renamed = next((names for pattern, names in _RENAMED.items() if re.search(rf"(?<![a-z])({pattern})", kind)), {})
    if modules is None or modules.value is None:
        modules = node_of(list(_PROJECTIONS), job.place) if renamed else None
    if modules is None:
        return None
    names = [str(name.value) for name in job.items_of(modules, key, " of module names")]
    fitting = list(dict.fromkeys(renamed.get(name, name) for name in names))
    if fitting != names:
        layers = f"{', '.join(fitting)}, as {job.made('model.llm.from')} names them"
        job.notes.append(f"LoRA is on the layers {layers}; VoxLM looks for {', '.join(names)}.")
    return job.lora_globs(node_of(fitting, modules.place), key)


def _kind(model: str) -> str:
    """Return the `model_type` of a folder, otherwise the name, in lower case."""
    file = Path(model) / "config.json"
    match = re.search(r'"model_type": *"(.*?)"', file.read_text(encoding="utf-8")) if file.is_file() else None
    return (match[1] if match else model).lower()


def _data(job: Conversion, positions: float) -> list[str]:
    """The section `data`; returns the keys in it of the sources of training and scoring."""
    folder = job.take("data.data_dir") or "./data"
    train, val = job.take("data.train_split") or "train-clean-100", job.take("data.val_split") or "dev-clean"
    name = f'"{_plain(val)}"' if _plain(val).strip(".") else "dev"
    sources = {"train.0": train, f"eval.{name}": val}
    for key, split in sources.items():
        source = {"type": "corpus", "name": "librispeech", "from": folder, "split": split}
        job.put(f"data.{key}", source | {"options": {"normalize_text": "lower"}})  # as VoxLM writes its texts
    job.put_batch("training.phase1.batch_size", 8, positions)
    job.put("data.max_seconds", 30.0)
    return [*sources]


def _words(job: Conversion, positions: float, sources: list[str]) -> None:
    """The stages, and a note on how the word times that the second one reads are made."""
    job.put("stages.0", {})
    second = "stages.1"
    job.put(f"{second}.task", {"type": "words"})
    job.put(f"{second}.model.aligner", {"layers": 2, "heads": 8, "dropout": 0.1})
    heads = int(job.number("model.alignment_num_heads", 8))
    if 128 % heads:  # a width of their own, where VoxLM's heads divide that of the language model
        job.put(f"{second}.model.aligner.width", -(-128 // heads) * heads)
    manifests = _prepare(job, sources)
    job.put(f"{second}.data.train", [])
    for key, manifest in manifests.items():
        job.put(f"{second}.data.{key}", {"type": "jsonl", "path": manifest})
    job.put_batch("training.phase2.batch_size", 16, positions, f"{second}.data")
    weight, older = job.take("training.phase2.alignment_weight"), job.take("model.alignment_loss_weight")
    alignment = {"type": "alignment", "weight": 1.0, "monotonicity": 0.1}
    job.put(f"{second}.losses", {"text": {"type": "cross_entropy"}, "alignment": alignment})
    job.put(f"{second}.losses.alignment.weight", weight or older)
    if weight is not None and older is not None and weight.plain() != older.plain():
        job.comment_out("Phase 2 has a weight of its own, which counts:", [("model.alignment_loss_weight", older)])
    job.put(f"{second}.optim.lr", 5e-5)
    job.put(f"{second}.schedule", {"warmup_steps": None})
    job.put(f"{second}.train", {"epochs": 5, "accumulate": 1})
    job.move_each(_STAGE_2, f"{second}.")
    job.comments += ["", "The alignment module begins untrained. It may want a higher lr than the rest, in stage 2:"]
    job.comments += ['  optim.groups: [{params: ["aligner.*"], lr: 1.0e-3}]']
    job.notes.append(
        "`stentor train` with this file does everything: it downloads LibriSpeech where it is missing, makes the word "
        "times of stage 2 (section `prepare`) and trains both stages."
    )


def _prepare(job: Conversion, sources: list[str]) -> dict[str, str]:
    """The section `prepare`: the corpus and its word times. Returns the manifest with the times of each source."""
    timestamps = _plain(job.take("data.timestamps_dir") or "./data/timestamps")
    whisper = _plain(job.take("data.whisper_model") or "small")
    if "/" not in whisper:  # a name of the package openai-whisper, not a folder or Hub id
        whisper = f"openai/whisper-{'large-v3-turbo' if whisper == 'turbo' else whisper}"
    data = {key: job.made(f"data.{key}") for key in sources}
    manifests = {key: f"{timestamps}/{source['split']}.jsonl" for key, source in data.items()}
    words = {"type": "words", "engine": "whisper", "model": whisper, "max_wer": job.take_number("data.max_wer", 0.1)}
    if (device := job.made("train.device")) not in (None, "auto"):
        words["device"] = device
    steps = [
        {key: source[key] for key in ("type", "name", "from", "split")}
        | {"download": True, "to": f"{source['from']}/manifests"}
        for source in data.values()
    ]
    steps += [words | {"to": manifests[key], "data": source} for key, source in data.items()]
    job.put("prepare", steps)
    return manifests


def _plain(value: Any) -> str:
    return str(value.plain() if isinstance(value, Node) else value)
