"""OmniVoice's configs: a training config and a data config, both JSON. Keys that it would drop are errors here."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stentor.config.convert.draft import Conversion, Converted, ForeignConfig, read, tables
from stentor.config.document import Mistake, Mistakes, Node
from stentor.section.explain import guess

_TABLES = tables("omnivoice")
_KEYS: dict[str, tuple[str, Any]] = _TABLES["keys"]
"""Keys with one counterpart of the same meaning, and OmniVoice's defaults."""
_UNSUPPORTED = {"what is computed in float32 is so in full": "allow_tf32"}
"""Keys that have no counterpart, by the reason."""
_LORA = {"lora_r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
_PADDED: dict[str, tuple[str, int]] = _TABLES["padded"]
"""Keys of the padded path alone, and OmniVoice's defaults."""
_ATTENTION = {"flex_attention": "flex", "sdpa": "sdpa", "eager": "sdpa"}
_PRECISION = {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}
_ENTRY = ("language_id", "manifest_path", "repeat")
_MISSING = ["tokens/data.lst"]
_WARM_UP_TYPES = {"ratio": "warmup_ratio", "steps": "warmup_steps"}
_WARM_UP = {"warmup_ratio": 0.03, "warmup_steps": 2000}
"""OmniVoice's defaults."""
RATE = 25
"""Frames a second of OmniVoice's codec."""
_TRAINED_WHOLE = ["audio_embeddings", "audio_heads"]
_ENTRIES, _CODEBOOKS = 1024, 8


def convert(train: Path, data: Path | None = None, output: str | None = None) -> Converted:
    """A run file for the family `omnivoice`. `data` and `output` are OmniVoice's `--data_config` and `--output_dir`.
    Values that are not in the file are OmniVoice's defaults. Raises `Mistakes` for all keys and values without a
    counterpart."""
    job = Conversion(read(train), null_is_default=True)
    target, data_config = job.take("output_dir"), job.take("data_config")
    folder = Path(output or (str(target.plain()) if target is not None else train.stem))
    job.put("name", folder.name)
    if folder.parent != Path("."):
        job.put("output", str(folder.parent))
    job.put("task.type", "speak")
    padded = _model(job)
    job.put("losses.codes.type", "codebook")
    if data is None and data_config is not None:
        data = Path(str(data_config.plain()))
    has_dev_set = _data(job, data)
    job.put("optim", {"type": "adamw", "betas": [0.9, 0.999]})
    job.move_each({key: target for key, target in _KEYS.items() if has_dev_set or key != "eval_steps"})
    job.leave_out("Without a dev set nothing is evaluated:", "eval_steps")
    _schedule(job)
    _batches(job, padded)
    _train(job)
    if (checkpoint := job.take("resume_from_checkpoint")) is not None:
        instead = "To start from its weights alone, name it as init_from_checkpoint instead"
        job.resume("resume_from_checkpoint", checkpoint, instead)
    job.put_callback("tracking", {"tensorboard": True})  # as OmniVoice always logs
    job.leave_out_each(_UNSUPPORTED)
    head = f"Converted from OmniVoice's {train.name} by `stentor config convert omnivoice`."
    return job.converted(head, "OmniVoice would drop it")


def _model(job: Conversion) -> bool:
    """The section `model`; returns whether batches are padded."""
    job.put("model.type", "omnivoice")
    shape = ("llm_name_or_path", "audio_vocab_size", "audio_mask_id", "num_audio_codebook")
    start, (_, _, mask, codebooks) = job.take("init_from_checkpoint"), map(job.values.get, shape)
    entries = int(job.number("audio_vocab_size", _ENTRIES + 1, 2)) - 1
    if mask is not None and mask.value != entries:
        job.wrong(mask, "audio_mask_id", f"the last id of audio_vocab_size, {entries}")
    weights = job.values.get("audio_codebook_weights")
    count = job.number("num_audio_codebook", _CODEBOOKS, 1)
    node = weights or codebooks
    weighted = _CODEBOOKS if weights is None or not isinstance(weights.value, list) else len(weights.value)
    if node is not None and count != weighted:
        job.wrong(node, "audio_codebook_weights", f"a weight for each of the {count} codebooks (num_audio_codebook)")
    if start is not None:
        job.put("model.from", start)
        job.leave_out("The model that training starts from has its own:", *shape)
    else:
        llm, *_ = map(job.take, shape)
        job.put("model.llm.from", llm or "Qwen/Qwen3-0.6B")
        job.put("model.entries", entries)
        job.put("model.codebooks", codebooks or _CODEBOOKS)
    # A checkpoint of OmniVoice's trainer has no codec beside it, the published model has.
    has_codec = start is not None and (
        str(start.value) == "k2-fsa/OmniVoice" or (Path(str(start.value)) / "audio_tokenizer").is_dir()
    )
    if not has_codec and entries == _ENTRIES:
        job.put("model.codec.type", "higgs_audio_v2")
        job.comments += ["", "model.codec is what the samples of evaluations are heard with; tokens need none."]
    attention = job.values.get("attn_implementation")
    kind = job.chosen("attn_implementation", _ATTENTION, "flex")
    if attention is not None and attention.value == "eager":
        job.comment_out("The same computation, faster:", [("attn_implementation", attention)])
    job.put("model.attention", kind, attention)
    _lora(job)
    return kind == "sdpa"


def _lora(job: Conversion) -> None:
    if not job.take_flag("use_lora"):
        job.leave_out("LoRA is off (use_lora):", *_LORA, "lora_bias", "lora_target_modules", "lora_modules_to_save")
        return
    job.put("model.lora", {"rank": 16, "alpha": 32, "dropout": 0.05})
    job.move_each(_LORA, "model.lora.")
    targets, bias, saved = map(job.take, ("lora_target_modules", "lora_bias", "lora_modules_to_save"))
    if targets is not None:
        job.put("model.lora.targets", job.lora_globs(targets, "lora_target_modules"))
    if bias is not None and bias.value != "none":
        job.wrong(bias, "lora_bias", "none: biases are not trained together with adapters here")
    if saved is not None and (not isinstance(saved.value, list) or sorted(map(str, saved.plain())) != _TRAINED_WHOLE):
        why = "only these are trained as a whole together with adapters here"
        job.wrong(saved, "lora_modules_to_save", f"{' and '.join(_TRAINED_WHOLE)}: {why}")
    job.comment_out("As always here:", [("lora_bias", bias), ("lora_modules_to_save", saved)])


def _data(job: Conversion, path: Path | None) -> bool:
    """The sources; returns whether there is a dev set."""
    root = None
    if path is None:
        shards = "data.train names token shards, tokens/data.lst, that you have to make"
        job.notes.append(f"no data config is given: {shards}.")
    else:
        try:
            root = read(path)
        except Mistakes as error:
            job.mistakes += error.mistakes
    if root is None:
        _put_shards(job, "data.train.0", _MISSING)
        return False
    job.mistakes += [
        Mistake(node.place, f"unknown key '{key}'{guess(key, ('train', 'dev'), 0.6)}: it has no counterpart", key)
        for key, node in root.value.items()
        if key not in ("train", "dev")
    ]
    before = len(job.mistakes)
    train, dev = (_entries(job, root.value.get(part), part) for part in ("train", "dev"))
    if not train and len(job.mistakes) == before:
        job.mistakes.append(Mistake(root.place, "'train' must list at least one entry with a manifest_path"))
    if not train:  # a mistake, which is reported once
        _put_shards(job, "data.train.0", _MISSING)
    languages = []
    for i, (manifests, repeat, language) in enumerate(train):
        _put_shards(job, f"data.train.{i}", manifests)
        job.put(f"data.train.{i}.repeat", None if repeat is not None and repeat.value == 1 else repeat)
        languages.append((f"data.train.{i}: language_id", language))
    if held_out := [manifest for manifests, _, _ in dev for manifest in manifests]:
        _put_shards(job, "data.eval.dev", held_out)
        languages += [("data.eval.dev: language_id", language) for _, _, language in dev]
        repeats = [("dev: repeat", repeat) for _, repeat, _ in dev if repeat is not None and repeat.value != 1]
        job.comment_out("Each record is evaluated once:", repeats)
    job.comment_out("Languages are those of the records (`language_id` there too):", languages)
    return bool(held_out)


def _put_shards(job: Conversion, key: str, manifests: Sequence[Node | str]) -> None:
    job.put(key, {"type": "shards", "path": manifests[0] if len(manifests) == 1 else [*manifests]})


def _entries(job: Conversion, entries: Node | None, part: str) -> list[tuple[list[Node], Node | None, Node | None]]:
    """(manifests, repeat, language) of each entry."""
    triples = []
    listed = entries if entries is None or entries.value is not None else None
    for entry in job.items_of(listed, part, " of entries with a manifest_path"):
        values = ForeignConfig(entry if isinstance(entry.value, dict) else Node({}, entry.place), null_is_default=True)
        language, paths, repeat = map(values.take, _ENTRY)
        job.mistakes += values.unknown(f"{part}.", 0.6)
        manifests = [] if paths is None else paths.value if isinstance(paths.value, list) else [paths]
        if not manifests or not all(isinstance(m.value, str) for m in manifests):
            job.mistakes.append(Mistake(entry.place, f"an entry of '{part}' needs a manifest_path, or a list of them"))
            continue
        triples.append((manifests, repeat, language))
    return triples


def _schedule(job: Conversion) -> None:
    shape = job.take("lr_scheduler_type")
    job.put("schedule.type", "constant" if shape is not None and shape.value == "constant" else "cosine", shape)
    if shape is not None and shape.value not in ("constant", "cosine"):
        job.comment_out("OmniVoice trains cosine wherever it is not `constant`:", [("lr_scheduler_type", shape)])
        job.notes.append(f"lr_scheduler_type: {shape.value} is cosine, as OmniVoice trains it.")
    used = job.chosen("warmup_type", _WARM_UP_TYPES, "warmup_ratio")
    job.move(used, f"schedule.{used}", _WARM_UP[used])
    job.leave_out("The other kind of warm-up counts (warmup_type):", *_WARM_UP)


def _batches(job: Conversion, padded: bool) -> None:
    """Limits of samples and batches."""
    if padded:
        job.move_each(_PADDED)
    else:
        job.leave_out("Only of padded batches (attn_implementation: sdpa):", *_PADDED)
    tokens = job.made("data.batch_tokens")
    if isinstance(tokens, int) and tokens > 0:
        # The number of tokens is the only limit of a sample there.
        job.put("data.max_seconds", float(math.ceil(tokens / RATE)))


def _train(job: Conversion) -> None:
    job.put("train.precision", job.chosen("mixed_precision", _PRECISION, "bf16"))
    if job.take_flag("use_deepspeed"):
        job.put("train.shard", True)
        job.notes.append("DeepSpeed (use_deepspeed) becomes FSDP2 (train.shard), which divides the weights, too.")
        job.leave_out("FSDP2 (train.shard) in place of DeepSpeed:", "deepspeed_config")
    job.leave_out("DeepSpeed is off (use_deepspeed):", "deepspeed_config")
    last = job.take("keep_last_n_checkpoints")
    if last is not None and (isinstance(last.value, bool) or not isinstance(last.value, int)):
        job.wrong(last, "keep_last_n_checkpoints", "a whole number")
        last = None
    place = job.place if last is None else last.place
    job.put("train.keep", Node(last.value if last is not None and last.value > 0 else None, place))  # 0: all of them
