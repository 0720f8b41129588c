"""OmniVoice's configs: a training config and a data config, both JSON. Unknown keys, which it drops, are told here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stentor.config.convert import Converted, Draft, Given, read
from stentor.config.document import Mistake, Mistakes, Node, Place
from stentor.config.explain import guess

_SAME = {
    "drop_cond_ratio": "task.drop_cond_ratio",
    "prompt_ratio_range": "task.prompt_ratio_range",
    "mask_ratio_range": "task.mask_ratio_range",
    "language_ratio": "task.language_ratio",
    "use_pinyin_ratio": "task.use_pinyin_ratio",
    "instruct_ratio": "task.instruct_ratio",
    "only_instruct_ratio": "task.only_instruct_ratio",
    "audio_codebook_weights": "losses.codes.weights",
    "learning_rate": "optim.lr",
    "weight_decay": "optim.weight_decay",
    "max_grad_norm": "train.clip",
    "steps": "train.steps",
    "seed": "train.seed",
    "lr_scheduler_type": "schedule.type",
    "batch_tokens": "data.batch_tokens",
    "gradient_accumulation_steps": "train.accumulate",
    "num_workers": "data.workers",
    "logging_steps": "train.log_every",
    "eval_steps": "train.eval_every",
    "save_steps": "train.save_every",
}
"""Keys with one counterpart of the same meaning."""
_DEFAULTS: dict[str, Any] = {
    "task.drop_cond_ratio": 0.1,
    "task.prompt_ratio_range": [0.0, 0.3],
    "task.mask_ratio_range": [0.0, 1.0],
    "task.language_ratio": 0.8,
    "task.use_pinyin_ratio": 0.3,
    "task.instruct_ratio": 1.0,
    "task.only_instruct_ratio": 0.5,
    "losses.codes.weights": [8, 8, 6, 6, 4, 4, 2, 2],
    "optim.lr": 1e-4,
    "optim.weight_decay": 0.01,
    "train.clip": 1.0,
    "train.steps": 300_000,
    "train.seed": 42,
    "schedule.type": "cosine",
    "data.batch_tokens": 8192,
    "train.accumulate": 1,
    "data.workers": 8,
    "train.log_every": 100,
    "train.eval_every": 1000,
    "train.save_every": 10_000,
}
"""Values of what is not in the file."""
_WITHOUT = {
    "allow_tf32": "what is computed in float32 is so in full",
    "resume_from_checkpoint": "the same command again goes on from the newest checkpoint, at the next batch",
}
"""Keys that have no counterpart, and why."""
_LORA = {"lora_r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
_PADDED = {
    "min_sample_tokens": "task.min_tokens",
    "max_sample_tokens": "task.max_tokens",
    "max_batch_size": "data.max_items",
}
"""Keys of the padded path alone."""
_PADDED_DEFAULTS = {"min_sample_tokens": 50, "max_sample_tokens": 2000, "max_batch_size": 64}
_ATTENTION = {"flex_attention": "flex", "sdpa": "sdpa", "eager": "sdpa"}
_PRECISION = {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}
_KNOWN = (
    *_SAME,
    *_WITHOUT,
    *_LORA,
    *_PADDED,
    "output_dir",
    "data_config",
    "llm_name_or_path",
    "audio_vocab_size",
    "audio_mask_id",
    "num_audio_codebook",
    "init_from_checkpoint",
    "warmup_type",
    "warmup_ratio",
    "warmup_steps",
    "mixed_precision",
    "use_deepspeed",
    "deepspeed_config",
    "attn_implementation",
    "keep_last_n_checkpoints",
    "use_lora",
    "lora_bias",
    "lora_target_modules",
    "lora_modules_to_save",
)
_ENTRY = ("language_id", "manifest_path", "repeat")
RATE = 25
"""Frames a second of OmniVoice's codec."""
_WHOLE = ["audio_embeddings", "audio_heads"]
_ENTRIES, _CODEBOOKS = 1024, 8


def convert(train: Path, data: Path | None = None, output: str | None = None) -> Converted:
    """A run file for the family `omnivoice`.

    `data` and `output` are OmniVoice's `--data_config` and `--output_dir`. Values that are not in the file are
    OmniVoice's defaults. Raises `Mistakes` for keys and values without a counterpart.
    """
    given = read(train, "")
    for key in [key for key, node in given.values.items() if node.value is None]:
        del given.values[key]  # null: as if it were not there
    draft = Draft(Place(0, 1, str(train)))
    notes: list[str] = []
    target, listed = given.take("output_dir"), given.take("data_config")
    folder = Path(output or (str(target.plain()) if target is not None else train.stem))
    draft.put("name", folder.name)
    if folder.parent != Path("."):
        draft.put("output", str(folder.parent))
    draft.put("task.type", "speak")
    padded = _model(given, draft)
    draft.put("losses.codes.type", "codebook")
    if data is None and listed is not None:
        data = Path(str(listed.plain()))
    evaluated = _data(draft, data, notes)
    draft.put("optim", {"type": "adamw", "betas": [0.9, 0.999]})
    for theirs, ours in _SAME.items():
        node = given.take(theirs)
        value = node if node is not None else _DEFAULTS[ours]
        if ours == "train.eval_every" and not evaluated:
            if node is not None:
                draft.keep("Without a dev set nothing is evaluated:", [(theirs, node)])
            continue
        draft.put(ours, value)
    _schedule(given, draft)
    _batches(given, draft, padded)
    _train(given, draft)
    for key, reason in _WITHOUT.items():
        if (node := given.take(key)) is not None:
            draft.keep(f"Without a key here: {reason}.", [(key, node)])
    if given.values:
        raise Mistakes(
            [
                Mistake(node.place, f"unknown key '{key}'{guess(key, _KNOWN, 0.7)}: OmniVoice would drop it", key)
                for key, node in given.values.items()
            ]
        )
    text = draft.text(f"Converted from OmniVoice's {train.name} by `stentor config convert omnivoice`.")
    return Converted(str(draft.root.value["name"].plain()), text, tuple(notes))


def _model(given: Given, draft: Draft) -> bool:
    """The section `model`; answers whether batches are padded."""
    draft.put("model.type", "omnivoice")
    start = given.take("init_from_checkpoint")
    shape = {
        key: given.take(key) for key in ("llm_name_or_path", "audio_vocab_size", "audio_mask_id", "num_audio_codebook")
    }
    vocabulary, mask = shape["audio_vocab_size"], shape["audio_mask_id"]
    entries = _whole_number(vocabulary, "audio_vocab_size", _ENTRIES + 1) - 1
    if _whole_number(mask, "audio_mask_id", entries, 0) != entries:
        place = mask.place if mask is not None else draft.place
        raise Mistakes([Mistake(place, f"'audio_mask_id' must be the last id of audio_vocab_size, {entries}")])
    if start is not None:
        draft.put("model.from", start)
        draft.keep(
            "The model that training starts from has its own:", [(k, n) for k, n in shape.items() if n is not None]
        )
    else:
        draft.put("model.llm.from", shape["llm_name_or_path"] or "Qwen/Qwen3-0.6B")
        draft.put("model.entries", entries)
        draft.put("model.codebooks", shape["num_audio_codebook"] or _CODEBOOKS)
    # A checkpoint of OmniVoice's trainer has no codec beside it, the published model has.
    complete = start is not None and (
        str(start.value) == "k2-fsa/OmniVoice" or (Path(str(start.value)) / "audio_tokenizer").is_dir()
    )
    if not complete and entries == _ENTRIES:
        draft.put("model.codec.type", "higgs_audio_v2")
        draft.comments += ["", "model.codec is what the samples of evaluations are heard with; tokens need none."]
    attention = given.take("attn_implementation")
    kind = "flex" if attention is None else _one_of(attention, "attn_implementation", _ATTENTION)
    if attention is not None and attention.value == "eager":
        draft.keep("The same computation, faster:", [("attn_implementation", attention)])
    draft.put("model.attention", Node(kind, attention.place if attention is not None else draft.place))
    _lora(given, draft)
    return kind == "sdpa"


def _lora(given: Given, draft: Draft) -> None:
    used = given.take("use_lora")
    values = {key: given.take(key) for key in (*_LORA, "lora_bias", "lora_target_modules", "lora_modules_to_save")}
    there = [(key, node) for key, node in values.items() if node is not None]
    if used is None or not _flag(used, "use_lora"):
        draft.keep("LoRA is off (use_lora):", there)
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
    if saved is not None and sorted(map(str, saved.plain())) != _WHOLE:
        raise Mistakes(
            [
                Mistake(
                    saved.place,
                    f"'lora_modules_to_save' must be {' and '.join(_WHOLE)}: these are "
                    "trained whole beside adapters here, and nothing else",
                )
            ]
        )
    same = (("lora_bias", bias), ("lora_modules_to_save", saved))
    draft.keep("As always here:", [(key, node) for key, node in same if node is not None])


def _data(draft: Draft, path: Path | None, notes: list[str]) -> bool:
    """The sources; answers whether there is a dev set."""
    if path is None:
        notes.append("no data config is given: data.train names token shards, tokens/data.lst, that you have to make.")
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
        draft.keep("Each record is evaluated once:", repeats)
    draft.keep("Languages are those of the records (`language_id` there too):", languages)
    return bool(dev)


def _entries(
    listed: Node | None, part: str, mistakes: list[Mistake]
) -> list[tuple[list[Node], Node | None, Node | None]]:
    """(manifests, repeat, language) of each entry."""
    if listed is None or listed.value is None:
        return []
    if not isinstance(listed.value, list):
        mistakes.append(Mistake(listed.place, f"'{part}' must be a list of entries with a manifest_path"))
        return []
    found = []
    for entry in listed.value:
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
        repeat, language = (
            None if (n := values.get(k)) is None or n.value is None else n for k in ("repeat", "language_id")
        )
        found.append((manifests, repeat, language))
    return found


def _schedule(given: Given, draft: Draft) -> None:
    kind = given.take("warmup_type")
    ratio, steps = given.take("warmup_ratio"), given.take("warmup_steps")
    if kind is not None and _one_of(kind, "warmup_type", {"ratio": "ratio", "steps": "steps"}) == "steps":
        draft.put("schedule.warmup_steps", steps if steps is not None else 2000)
        rest = [("warmup_ratio", ratio)] if ratio is not None else []
    else:
        draft.put("schedule.warmup_ratio", ratio if ratio is not None else 0.03)
        rest = [("warmup_steps", steps)] if steps is not None else []
    draft.keep("The other kind of warm-up counts (warmup_type):", rest)


def _batches(given: Given, draft: Draft, padded: bool) -> None:
    """What bounds samples and batches."""
    limits = {key: given.take(key) for key in _PADDED}
    if padded:
        for theirs, ours in _PADDED.items():
            value = limits[theirs]
            draft.put(ours, _PADDED_DEFAULTS[theirs] if value is None else value)
    else:
        draft.keep(
            "Only of padded batches (attn_implementation: sdpa):",
            [(key, node) for key, node in limits.items() if node is not None],
        )
    tokens = draft.root.value["data"].value["batch_tokens"].value
    if isinstance(tokens, int) and tokens > 0:
        # The number of tokens is the only limit of a sample there.
        draft.put("data.max_seconds", float(math.ceil(tokens / RATE)))


def _train(given: Given, draft: Draft) -> None:
    mixed = given.take("mixed_precision")
    precision = "bf16" if mixed is None else _one_of(mixed, "mixed_precision", _PRECISION)
    draft.put("train.precision", Node(precision, mixed.place if mixed is not None else draft.place))
    used, config = given.take("use_deepspeed"), given.take("deepspeed_config")
    if used is not None and _flag(used, "use_deepspeed"):
        draft.put("train.deepspeed", config if config is not None else {"zero_optimization": {"stage": 2}})
    elif config is not None:
        draft.keep("DeepSpeed is off (use_deepspeed):", [("deepspeed_config", config)])
    kept = given.take("keep_last_n_checkpoints")
    count = -1 if kept is None else kept.value
    if isinstance(count, bool) or not isinstance(count, int):
        raise Mistakes(
            [Mistake(kept.place if kept else draft.place, "'keep_last_n_checkpoints' must be a whole number")]
        )
    if count <= 0:  # all of them
        train = draft.root.value["train"].value
        steps, every = train["steps"].value, train["save_every"].value
        fine = all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in (steps, every))
        count = math.ceil(steps / every) if fine else 1
    draft.put("train.keep", Node(count, kept.place if kept is not None else draft.place))


def _one_of(node: Node, key: str, known: dict[str, str]) -> str:
    if not isinstance(node.value, str) or node.value not in known:
        raise Mistakes([Mistake(node.place, f"'{key}' must be {' or '.join(known)}, not {node.value!r}", key)])
    return known[node.value]


def _flag(node: Node, key: str) -> bool:
    if not isinstance(node.value, bool):
        raise Mistakes([Mistake(node.place, f"'{key}' must be true or false", key)])
    return node.value


def _whole_number(node: Node | None, key: str, default: int, least: int = 1) -> int:
    if node is None:
        return default
    if isinstance(node.value, bool) or not isinstance(node.value, int) or node.value < least:
        raise Mistakes([Mistake(node.place, f"'{key}' must be a whole number of {least} or more", key)])
    return node.value
