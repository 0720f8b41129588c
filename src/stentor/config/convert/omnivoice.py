"""OmniVoice's configs: a training config and a data config, both JSON. Keys that it would drop are errors here."""

import math
from pathlib import Path
from typing import Any

from stentor.config.convert.draft import Converted, Draft, ForeignConfig, one_of, read
from stentor.config.document import Mistake, Mistakes, Node, Place
from stentor.config.explain import guess

_KEYS: dict[str, tuple[str, Any]] = {
    "drop_cond_ratio": ("task.drop_cond_ratio", 0.1),
    "prompt_ratio_range": ("task.prompt_ratio_range", [0.0, 0.3]),
    "mask_ratio_range": ("task.mask_ratio_range", [0.0, 1.0]),
    "language_ratio": ("task.language_ratio", 0.8),
    "use_pinyin_ratio": ("task.use_pinyin_ratio", 0.3),
    "instruct_ratio": ("task.instruct_ratio", 1.0),
    "only_instruct_ratio": ("task.only_instruct_ratio", 0.5),
    "audio_codebook_weights": ("losses.codes.weights", [8, 8, 6, 6, 4, 4, 2, 2]),
    "learning_rate": ("optim.lr", 1e-4),
    "weight_decay": ("optim.weight_decay", 0.01),
    "max_grad_norm": ("train.clip", 1.0),
    "steps": ("train.steps", 300_000),
    "seed": ("train.seed", 42),
    "batch_tokens": ("data.batch_tokens", 8192),
    "gradient_accumulation_steps": ("train.accumulate", 1),
    "num_workers": ("data.workers", 8),
    "logging_steps": ("train.log_every", 100),
    "eval_steps": ("train.eval_every", 1000),
    "save_steps": ("train.save_every", 10_000),
}
"""Keys with one counterpart of the same meaning, and OmniVoice's defaults."""
_UNSUPPORTED = {
    "what is computed in float32 is so in full": "allow_tf32",
    "the same command again goes on from the newest checkpoint, at the next batch": "resume_from_checkpoint",
}
"""Keys that have no counterpart, by the reason."""
_LORA = {"lora_r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
_PADDED: dict[str, tuple[str, int]] = {
    "min_sample_tokens": ("task.min_tokens", 50),
    "max_sample_tokens": ("task.max_tokens", 2000),
    "max_batch_size": ("data.max_items", 64),
}
"""Keys of the padded path alone, and OmniVoice's defaults."""
_ATTENTION = {"flex_attention": "flex", "sdpa": "sdpa", "eager": "sdpa"}
_PRECISION = {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}
_ENTRY = ("language_id", "manifest_path", "repeat")
RATE = 25
"""Frames a second of OmniVoice's codec."""
_TRAINED_WHOLE = ["audio_embeddings", "audio_heads"]
_ENTRIES, _CODEBOOKS = 1024, 8


def convert(train: Path, data: Path | None = None, output: str | None = None) -> Converted:
    """A run file for the family `omnivoice`. `data` and `output` are OmniVoice's `--data_config` and `--output_dir`.
    Values that are not in the file are OmniVoice's defaults. Raises `Mistakes` for keys and values without a
    counterpart."""
    foreign = read(train, "")
    foreign.drop_nulls()
    draft = Draft(Place(0, 1, str(train)))
    target, data_config = foreign.take("output_dir"), foreign.take("data_config")
    folder = Path(output or (str(target.plain()) if target is not None else train.stem))
    draft.put("name", folder.name)
    if folder.parent != Path("."):
        draft.put("output", str(folder.parent))
    draft.put("task.type", "speak")
    padded = _model(foreign, draft)
    draft.put("losses.codes.type", "codebook")
    if data is None and data_config is not None:
        data = Path(str(data_config.plain()))
    has_dev_set = _data(draft, data)
    draft.put("optim", {"type": "adamw", "betas": [0.9, 0.999]})
    for theirs, (ours, default) in _KEYS.items():
        node = foreign.take(theirs)
        if ours == "train.eval_every" and not has_dev_set:
            draft.comment_out("Without a dev set nothing is evaluated:", [(theirs, node)])
        else:
            draft.put(ours, node if node is not None else default)
    _schedule(foreign, draft)
    _batches(foreign, draft, padded)
    _train(foreign, draft)
    draft.comment_out_unsupported(foreign, _UNSUPPORTED.items())
    if mistakes := foreign.unknown(why="OmniVoice would drop it"):
        raise Mistakes(mistakes)
    return draft.converted(f"Converted from OmniVoice's {train.name} by `stentor config convert omnivoice`.", foreign)


def _model(foreign: ForeignConfig, draft: Draft) -> bool:
    """The section `model`; returns whether batches are padded."""
    draft.put("model.type", "omnivoice")
    start = foreign.take("init_from_checkpoint")
    shape = dict(foreign.take_each(("llm_name_or_path", "audio_vocab_size", "audio_mask_id", "num_audio_codebook")))
    vocabulary, mask = shape["audio_vocab_size"], shape["audio_mask_id"]
    entries = _whole_number(vocabulary, "audio_vocab_size", _ENTRIES + 1) - 1
    if _whole_number(mask, "audio_mask_id", entries, 0) != entries:
        place = mask.place if mask is not None else draft.place
        raise Mistakes([Mistake(place, f"'audio_mask_id' must be the last id of audio_vocab_size, {entries}")])
    codebooks, weights = shape["num_audio_codebook"], foreign.values.get("audio_codebook_weights")
    count = _whole_number(codebooks, "num_audio_codebook", _CODEBOOKS)
    if count != (_CODEBOOKS if weights is None or not isinstance(weights.value, list) else len(weights.value)):
        node = weights or codebooks
        message = f"'audio_codebook_weights' must be a weight for each of the {count} codebooks (num_audio_codebook)"
        raise Mistakes([Mistake(draft.place if node is None else node.place, message)])
    if start is not None:
        draft.put("model.from", start)
        draft.comment_out("The model that training starts from has its own:", shape.items())
    else:
        draft.put("model.llm.from", shape["llm_name_or_path"] or "Qwen/Qwen3-0.6B")
        draft.put("model.entries", entries)
        draft.put("model.codebooks", codebooks or _CODEBOOKS)
    # A checkpoint of OmniVoice's trainer has no codec beside it, the published model has.
    has_codec = start is not None and (
        str(start.value) == "k2-fsa/OmniVoice" or (Path(str(start.value)) / "audio_tokenizer").is_dir()
    )
    if not has_codec and entries == _ENTRIES:
        draft.put("model.codec.type", "higgs_audio_v2")
        draft.comments += ["", "model.codec is what the samples of evaluations are heard with; tokens need none."]
    attention = foreign.take("attn_implementation")
    kind = "flex" if attention is None else one_of(attention, "attn_implementation", _ATTENTION)
    if attention is not None and attention.value == "eager":
        draft.comment_out("The same computation, faster:", [("attn_implementation", attention)])
    draft.put("model.attention", Node(kind, attention.place if attention is not None else draft.place))
    _lora(foreign, draft)
    return kind == "sdpa"


def _lora(foreign: ForeignConfig, draft: Draft) -> None:
    values = dict(foreign.take_each((*_LORA, "lora_bias", "lora_target_modules", "lora_modules_to_save")))
    if not foreign.take_flag("use_lora"):
        draft.comment_out("LoRA is off (use_lora):", values.items())
        return
    draft.put("model.lora", {"rank": 16, "alpha": 32, "dropout": 0.05})
    for theirs, ours in _LORA.items():
        draft.put(f"model.lora.{ours}", values[theirs])
    targets, bias, saved = (values[f"lora_{key}"] for key in ("target_modules", "bias", "modules_to_save"))
    if targets is not None:
        if not isinstance(targets.value, list):
            raise Mistakes([Mistake(targets.place, "'lora_target_modules' must be a list of module names")])
        globs = [Node(f"llm.*.{item.value}", item.place) for item in targets.value]
        draft.put("model.lora.targets", Node(globs, targets.place))
    if bias is not None and bias.value != "none":
        raise Mistakes([Mistake(bias.place, "'lora_bias' must be none: biases are not trained beside adapters here")])
    if saved is not None and sorted(map(str, saved.plain())) != _TRAINED_WHOLE:
        parts = " and ".join(_TRAINED_WHOLE)
        why = "these are trained whole beside adapters here, and nothing else"
        raise Mistakes([Mistake(saved.place, f"'lora_modules_to_save' must be {parts}: {why}")])
    draft.comment_out("As always here:", [("lora_bias", bias), ("lora_modules_to_save", saved)])


def _data(draft: Draft, path: Path | None) -> bool:
    """The sources; returns whether there is a dev set."""
    if path is None:
        shards = "data.train names token shards, tokens/data.lst, that you have to make"
        draft.notes.append(f"no data config is given: {shards}.")
        draft.put("data.train.0", {"type": "shards", "path": "tokens/data.lst"})
        return False
    root = read(path, "").root
    mistakes = [
        Mistake(node.place, f"unknown key '{key}'{guess(key, ('train', 'dev'), 0.6)}: it has no counterpart", key)
        for key, node in root.value.items()
        if key not in ("train", "dev")
    ]
    parts = {part: _entries(root.value.get(part), part, mistakes) for part in ("train", "dev")}
    if not parts["train"] and not mistakes:
        mistakes.append(Mistake(root.place, "'train' must list at least one entry with a manifest_path"))
    if mistakes:
        raise Mistakes(mistakes)
    languages = []
    for i, (manifests, repeat, language) in enumerate(parts["train"]):
        key = f"data.train.{i}"
        draft.put(f"{key}.type", "shards")
        draft.put(f"{key}.path", manifests[0] if len(manifests) == 1 else Node(manifests, manifests[0].place))
        if repeat is not None and repeat.value != 1:
            draft.put(f"{key}.repeat", repeat)
        if language is not None:
            languages.append((f"{key}: language_id", language))
    dev = [manifest for manifests, _, _ in parts["dev"] for manifest in manifests]
    if dev:
        draft.put("data.eval.dev.type", "shards")
        draft.put("data.eval.dev.path", dev[0] if len(dev) == 1 else Node(dev, dev[0].place))
        languages += [("data.eval.dev: language_id", node) for _, _, node in parts["dev"] if node is not None]
        repeats = [("dev: repeat", node) for _, node, _ in parts["dev"] if node is not None and node.value != 1]
        draft.comment_out("Each record is evaluated once:", repeats)
    draft.comment_out("Languages are those of the records (`language_id` there too):", languages)
    return bool(dev)


def _entries(
    entries: Node | None, part: str, mistakes: list[Mistake]
) -> list[tuple[list[Node], Node | None, Node | None]]:
    """(manifests, repeat, language) of each entry."""
    if entries is None or entries.value is None:
        return []
    if not isinstance(entries.value, list):
        mistakes.append(Mistake(entries.place, f"'{part}' must be a list of entries with a manifest_path"))
        return []
    triples = []
    for entry in entries.value:
        values = entry.value if isinstance(entry.value, dict) else {}
        mistakes += [
            Mistake(n.place, f"unknown key '{part}.{k}'{guess(k, _ENTRY, 0.6)}: it has no counterpart", k)
            for k, n in values.items()
            if k not in _ENTRY
        ]
        paths = values.get("manifest_path")
        manifests = [] if paths is None else paths.value if isinstance(paths.value, list) else [paths]
        if not manifests or not all(isinstance(m.value, str) for m in manifests):
            mistakes.append(Mistake(entry.place, f"an entry of '{part}' needs a manifest_path, or a list of them"))
            continue
        written = {key: node for key, node in values.items() if node.value is not None}
        repeat, language = written.get("repeat"), written.get("language_id")
        triples.append((manifests, repeat, language))
    return triples


def _schedule(foreign: ForeignConfig, draft: Draft) -> None:
    shape, kind = foreign.take("lr_scheduler_type"), foreign.take("warmup_type")
    constant = shape is not None and shape.value == "constant"
    draft.put("schedule.type", Node("constant" if constant else "cosine", shape.place if shape else draft.place))
    if shape is not None and shape.value not in ("constant", "cosine"):
        draft.comment_out("OmniVoice trains cosine wherever it is not `constant`:", [("lr_scheduler_type", shape)])
        draft.notes.append(f"lr_scheduler_type: {shape.value} is cosine, as OmniVoice trains it.")
    ratio, steps = foreign.take("warmup_ratio"), foreign.take("warmup_steps")
    if kind is not None and one_of(kind, "warmup_type", {"ratio": "ratio", "steps": "steps"}) == "steps":
        draft.put("schedule.warmup_steps", steps if steps is not None else 2000)
        unused = ("warmup_ratio", ratio)
    else:
        draft.put("schedule.warmup_ratio", ratio if ratio is not None else 0.03)
        unused = ("warmup_steps", steps)
    draft.comment_out("The other kind of warm-up counts (warmup_type):", [unused])


def _batches(foreign: ForeignConfig, draft: Draft, padded: bool) -> None:
    """Limits of samples and batches."""
    limits = foreign.take_each(_PADDED)
    if padded:
        for key, node in limits:
            ours, default = _PADDED[key]
            draft.put(ours, default if node is None else node)
    else:
        draft.comment_out("Only of padded batches (attn_implementation: sdpa):", limits)
    tokens = draft.root.value["data"].value["batch_tokens"].value
    if isinstance(tokens, int) and tokens > 0:
        # The number of tokens is the only limit of a sample there.
        draft.put("data.max_seconds", float(math.ceil(tokens / RATE)))


def _train(foreign: ForeignConfig, draft: Draft) -> None:
    mixed = foreign.take("mixed_precision")
    precision = "bf16" if mixed is None else one_of(mixed, "mixed_precision", _PRECISION)
    draft.put("train.precision", Node(precision, mixed.place if mixed is not None else draft.place))
    config = foreign.take("deepspeed_config")
    if foreign.take_flag("use_deepspeed"):
        draft.put("train.shard", True)
        draft.notes.append("DeepSpeed (use_deepspeed) becomes FSDP2 (train.shard), which divides the weights, too.")
        draft.comment_out("FSDP2 (train.shard) in place of DeepSpeed:", [("deepspeed_config", config)])
    else:
        draft.comment_out("DeepSpeed is off (use_deepspeed):", [("deepspeed_config", config)])
    last = foreign.take("keep_last_n_checkpoints")
    place = draft.place if last is None else last.place
    count = -1 if last is None else last.value
    if isinstance(count, bool) or not isinstance(count, int):
        raise Mistakes([Mistake(place, "'keep_last_n_checkpoints' must be a whole number")])
    draft.put("train.keep", Node(count if count > 0 else None, place))  # 0 and less: all of them


def _whole_number(node: Node | None, key: str, default: int, least: int = 1) -> int:
    if node is None:
        return default
    if isinstance(node.value, bool) or not isinstance(node.value, int) or node.value < least:
        raise Mistakes([Mistake(node.place, f"'{key}' must be a whole number of {least} or more", key)])
    return node.value
