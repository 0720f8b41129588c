"""Configs of the universal training pipeline (TS-DIA): `model`, `global_config` with `datasets`, and `training`."""

from __future__ import annotations

from pathlib import Path

from stentor.config.convert import Converted, Draft, read
from stentor.config.convert.universal_data import KNOWN as DATA
from stentor.config.convert.universal_data import Work, data
from stentor.config.document import Mistake, Mistakes, Node, Place
from stentor.config.explain import guess

_LAYERS = {
    "d_model": "d_model",
    "num_layers": "layers",
    "num_heads": "heads",
    "attention_type": "attention",
    "d_ff": "d_ff",
    "dropout": "dropout",
}
"""Settings of a stack of layers."""
_OF_LAYERS = (
    *_LAYERS,
    "nb_features",
    "activation",
    "positional",
    "use_rezero",
    "use_scalenorm",
    "use_cross_attention",
    "device",
    "batch_size",
    "num_classes",
    "feature_redraw_interval",
    "auto_check_redraw",
)
_PARTS = ("global_config", "encoder", "decoder")
_SAME = {
    "training.optimizer.type": "optim.type",
    "training.optimizer.lr": "optim.lr",
    "training.optimizer.weight_decay": "optim.weight_decay",
    "training.optimizer.betas": "optim.betas",
    "training.optimizer.epsilon": "optim.eps",
    "training.optimizer.momentum": "optim.momentum",
    "training.optimizer.amsgrad": "optim.amsgrad",
    "training.optimizer.nesterov": "optim.nesterov",
    "training.scheduler.type": "schedule.type",
    "training.scheduler.warmup_steps": "schedule.warmup_steps",
    "training.scheduler.num_cycles": "schedule.cycles",
    "training.scheduler.step_size": "schedule.step_size",
    "training.scheduler.gamma": "schedule.gamma",
    "training.scheduler.patience": "schedule.patience",
    "training.gradient_clipping": "train.clip",
    "training.gradient_accumulation_steps": "train.accumulate",
    "training.validation.interval": "train.eval_every",
    "training.checkpoint.save_dir": "output",
    "training.checkpoint.interval": "train.save_every",
    "training.checkpoint.save_total_limit": "train.keep",
    "training.logging.interval": "train.log_every",
    "training.performance.compile_model": "train.compile",
    "training.distributed.find_unused_parameters": "train.find_unused",
    "training.fixed_projection": "model.fixed_projection",
}
"""Keys with one counterpart of the same meaning."""
_WITHOUT = {
    "tensors have no fixed batch size, and the device is `train.device`": (
        *(f"model.{part}.{key}" for part in _PARTS for key in ("device", "batch_size")),
    ),
    "the labels of the task say how many outputs there are": tuple(f"model.{part}.num_classes" for part in _PARTS),
    "`redraw` counts optimizer steps for the whole model, by itself": (
        *(f"model.{part}.auto_check_redraw" for part in _PARTS),
    ),
    "a decoder attends to the encoder where there is one": (*(f"model.{part}.use_cross_attention" for part in _PARTS),),
    "the peak is `optim.lr`, and the schedule ends with the run": (
        "training.scheduler.max_lr",
        "training.scheduler.decay_steps",
    ),
    "a plateau is one of the task's main metric, which knows its direction": ("training.scheduler.mode",),
    "losses are sums that are divided by the targets of the whole step, over all batches and processes": (
        "training.loss.reduction",
    ),
    "fp16 is scaled by itself where `train.precision` asks for it": ("training.amp_loss_scale",),
    "the task's main metric on the first evaluation set picks the best checkpoint": (
        "training.validation.metric_for_best_model",
        "training.validation.greater_is_better",
        "training.checkpoint.monitor_metric",
    ),
    "checkpoints always hold all of it, and the same command again goes on where it was": tuple(
        f"training.checkpoint.{key}"
        for key in (
            "resume",
            "snapshot_optimizer",
            "snapshot_scheduler",
            "snapshot_features",
            "resume_restore_optimizer",
            "resume_restore_scheduler",
            "resume_restore_trainer_state",
        )
    ),
    "processes are started by `stentor train RUN.yaml --processes N`, and kept in step": tuple(
        f"training.distributed.{key}"
        for key in (
            "backend",
            "world_size",
            "local_rank",
            "sync_gradient_barrier",
            "gradient_as_bucket_view",
            "static_graph",
        )
    ),
    "everything is logged each time": tuple(
        f"training.logging.{key}" for key in ("log_metrics", "log_model", "log_gradients")
    ),
    "memory is pinned and workers are kept where it helps, and no record is dropped for the size of a batch": tuple(
        f"training.performance.{key}" for key in ("pin_memory", "persistent_workers", "drop_last", "batch_shim")
    ),
    "see `task.windows` (diarize) and `task.beams` (transcribe)": (
        "training.eval_knobs.batch_size",
        "training.eval_knobs.beam_width",
        "training.eval_knobs.sliding_window",
        "training.eval_knobs.min_speaker_dim",
    ),
}
"""What has no key here, by the reason."""
_SECTIONS = {
    "training.tuning": "settings are searched for by a loop around `stentor train RUN.yaml key=value`",
    "training.safeguards": "a step with a loss or gradient that is not finite is skipped: `train.max_skipped`",
}
"""Free sections without a counterpart."""
_OTHERS = (
    "model.model_type",
    "model.name",
    *(f"model.{part}.{key}" for part in _PARTS for key in _OF_LAYERS),
    "training.epochs",
    "training.max_steps",
    "training.random_seed",
    "training.scheduler.min_lr",
    "training.mixed_precision",
    "training.feature_redraw_interval",
    "training.callbacks",
    "training.profiling",
    "training.loss.main",
    "training.loss.label_smoothing",
    "training.loss.auxiliary",
    "training.loss.focal_alpha",
    "training.loss.focal_gamma",
    "training.validation.validate_on_epoch",
    "training.checkpoint.save_best_only",
    "training.checkpoint.interval_in_epochs",
    *(f"training.early_stopping.{key}" for key in ("patience", "metric", "min_delta", "mode", "restore_best_weights")),
    "training.logging.tensorboard",
    "training.logging.wandb",
    "training.logging.wandb_project",
    "training.logging.wandb_entity",
    "training.eval_knobs.label_type",
)
_KNOWN = (*_SAME, *(key for keys in _WITHOUT.values() for key in keys), *_SECTIONS, *_OTHERS, *DATA)
_TASKS = {"encoder": "diarize", "encoder_decoder": "transcribe", "decoder": "language"}
_LABELS = {"binary": "binary", "speaker_id": "speaker", "custom": "speaker", "ego": "speaker"}
_POSITIONS = {"learnable": "learned"}
_OF_CLASSES = ("cross_entropy", "nll", "kl_div", "label_smoothing")
"""Losses of one class per frame."""
_SMOOTHED = ("cross_entropy", "bce", "bce_with_logits", "pit_bce", "ats_bce", "powerset")
"""Losses with label smoothing."""


def convert(path: Path) -> Converted:
    """A run file for the family `transformer`.

    A file may hold any of the three sections; what it leaves out has our defaults, or theirs where a section is given.
    Raises `Mistakes` for keys and values that are not known.
    """
    given = read(path, "")
    for key in [key for key, node in given.values.items() if node.value is None]:
        del given.values[key]  # null: as if it were not there
    place = Place(0, 1, str(path))
    work = Work(given, Draft(place))
    draft = work.draft
    draft.put("name", given.take("model.name") or path.stem)
    draft.put("output", given.take("training.checkpoint.save_dir"))
    _task(work)
    _model(work)
    mistakes = data(work)
    _losses(work)
    _optim(work)
    _train(work)
    _callbacks(work)
    for reason, keys in _WITHOUT.items():
        draft.keep(f"Without a key here: {reason}.", [(k, n) for k in keys if (n := given.take(k)) is not None])
    for section, reason in _SECTIONS.items():
        own = given.take(section)
        found = ([(section, own)] if own is not None else []) + given.under(section)
        draft.keep(f"Without a key here: {reason}.", found)
    mistakes += [
        Mistake(node.place, f"unknown key '{key}'{guess(key, _KNOWN, 0.7)}: it has no counterpart", key)
        for key, node in given.values.items()
    ]
    if mistakes:
        raise Mistakes(mistakes)
    text = draft.text(f"Converted from {path.name} of the universal pipeline by `stentor config convert universal`.")
    return Converted(str(draft.root.value["name"].plain()), text, tuple(work.notes))


def _task(work: Work) -> None:
    """The task that the model's kind is for; whoever names labels of frames wants these."""
    given, draft = work.given, work.draft
    kind, labels = given.take("model.model_type"), given.take("training.eval_knobs.label_type")
    work.kind = "encoder" if kind is None else _one_of(kind, "model.model_type", _TASKS)
    if labels is not None and work.kind != "encoder":
        work.notes.append(
            "label_type asks for labels of frames, which an encoder alone gives here: the decoder is left out. Without "
            "label_type the whole model becomes a recogniser (task: transcribe)."
            if work.kind == "encoder_decoder"
            else "label_type is left out: a decoder alone is a language model, which hears nothing."
        )
        if work.kind == "encoder_decoder":
            work.kind = "encoder"
            draft.keep("Frames are labelled by an encoder alone; the decoder:", given.under("model.decoder"))
        else:
            draft.keep("Of diarization, which a decoder alone cannot do:", [("training.eval_knobs.label_type", labels)])
    work.task = _TASKS[work.kind]
    draft.put("task.type", work.task)
    if work.task != "diarize":
        return
    named = "binary" if labels is None else _one_of(labels, "training.eval_knobs.label_type", _LABELS)
    if named in ("custom", "ego"):
        work.notes.append(
            f"label_type: {named} is code there. Here a plug-in's class of labels (docs/extend.md) is named under "
            "task.labels; until then the file says `speaker`."
        )
    work.labels = _LABELS[named]
    draft.put("task.labels", Node(work.labels, labels.place if labels else draft.place))


def _model(work: Work) -> None:
    given, draft = work.given, work.draft
    draft.put("model.type", "transformer")
    draft.put("model.kind", work.kind)
    unused = [part for part in ("encoder", "decoder") if part not in work.kind.split("_")]
    for part in unused:
        draft.keep(f"A model of the kind {work.kind} has no {part}:", given.under(f"model.{part}"))
    for part, ours in (("global_config", "shared"), ("encoder", "encoder"), ("decoder", "decoder")):
        for key, name in _LAYERS.items():
            draft.put(f"model.{ours}.{name}", given.take(f"model.{part}.{key}"))
        features = given.take(f"model.{part}.nb_features")
        attention = draft.root.value["model"].value.get(ours)
        linear = attention is not None and "linear" in str(attention.plain().get("attention"))
        work.linear = work.linear or linear
        if linear or part == "global_config":
            draft.put(f"model.{ours}.attention_features", features)
        elif features is not None:
            draft.keep("Random features are of linear attention:", [(f"model.{part}.nb_features", features)])
        activation, positions = given.take(f"model.{part}.activation"), given.take(f"model.{part}.positional")
        if activation is not None:
            draft.put(f"model.{ours}.activation", Node(str(activation.value).lower(), activation.place))
        if positions is not None:
            value = str(positions.value)
            draft.put(f"model.{ours}.positions", Node(_POSITIONS.get(value, value), positions.place))
        norms = [(n, given.take(f"model.{part}.use_{n}")) for n in ("rezero", "scalenorm")]
        chosen = [Node(n, node.place) for n, node in norms if node is not None and _flag(node, f"model.{part}.use_{n}")]
        if len(chosen) > 1:
            raise Mistakes([Mistake(chosen[1].place, f"'model.{part}': use_rezero and use_scalenorm are both true")])
        draft.put(f"model.{ours}.norm", chosen[0] if chosen else None)


def _losses(work: Work) -> None:
    given, draft = work.given, work.draft
    main, smoothing = given.take("training.loss.main"), given.take("training.loss.label_smoothing")
    auxiliary = given.under("training.loss.auxiliary")
    focal = [(key, given.take(f"training.loss.focal_{key}")) for key in ("alpha", "gamma")]
    given.take("training.loss.auxiliary")  # an empty one
    if main is None:
        rest = [("training.loss.label_smoothing", smoothing), *auxiliary]
        draft.keep("No main loss is given, so the task's own; beside it:", [(k, n) for k, n in rest if n is not None])
        return
    theirs = str(main.value)
    if work.task == "diarize":
        term = "speech" if work.labels == "binary" else "speakers"
        of_bits = "bce_with_logits" if work.labels == "binary" else "pit_bce"
        whole = theirs in _OF_CLASSES or (term == "speakers" and theirs in ("bce", "bce_with_logits"))
        kind = of_bits if whole else theirs
    else:
        term, kind = "text", "cross_entropy"
    if kind != theirs and theirs != "label_smoothing":
        why = {
            "speech": "of two classes, cross entropy is binary cross entropy",
            "speakers": "speakers have no order of their own: the best one is taken for each item",
            "text": "text is learned by the cross entropy of its tokens",
        }[term]
        draft.keep(f"Here {kind}, because {why}:", [("training.loss.main", main)])
    draft.put(f"losses.{term}.type", Node(kind, main.place))
    if kind not in _SMOOTHED:
        draft.keep(f"{kind} smooths no labels:", [("training.loss.label_smoothing", smoothing)] if smoothing else [])
    elif smoothing is not None or theirs == "label_smoothing":
        draft.put(f"losses.{term}.label_smoothing", smoothing or 0.1)
    if kind == "focal":
        for key, node in focal:
            draft.put(f"losses.{term}.{key}", node)
    else:
        draft.keep("Only of focal loss:", [(f"training.loss.focal_{key}", n) for key, n in focal if n is not None])
    if work.task != "diarize":
        draft.keep(f"The task {work.task} has no such terms:", auxiliary)
        return
    for key, weight in auxiliary:
        name = key.rpartition(".")[2]
        draft.put(f"losses.{name}.type", Node(name, weight.place))
        draft.put(f"losses.{name}.weight", weight)
        if name == "contrastive":
            draft.put("model.embedding", 128)


def _optim(work: Work) -> None:
    given, draft = work.given, work.draft
    if any(key.startswith("training.optimizer.") for key in given.values):
        draft.put("optim", {"type": "adamw", "weight_decay": 0.0, "betas": [0.9, 0.999]})  # theirs
    kind = given.values.get("training.optimizer.type")
    if kind is not None and kind.value in ("sgd", "rmsprop"):
        draft.put("optim.momentum", 0.0)
    scheduler = any(key.startswith("training.scheduler.") for key in given.values)
    draft.put("schedule.type", "constant")
    draft.put("schedule.warmup_steps", 0)
    least, peak = given.take("training.scheduler.min_lr"), given.values.get("training.optimizer.lr")
    shape = given.values.get("training.scheduler.type")
    if scheduler and shape is not None and shape.value == "exponential":
        draft.put("schedule.step_size", 1)
    for theirs, ours in _SAME.items():
        if ours.split(".")[0] in ("optim", "schedule"):
            draft.put(ours, given.take(theirs))
    if least is not None:
        if peak is None or not _number(peak, "training.optimizer.lr") > 0:
            draft.keep(
                "The lowest learning rate is a share of the peak here, which is not given:",
                [("training.scheduler.min_lr", least)],
            )
        else:
            share = _number(least, "training.scheduler.min_lr") / _number(peak, "training.optimizer.lr")
            draft.put("schedule.min_ratio", Node(float(f"{share:.6g}"), least.place))


def _train(work: Work) -> None:
    given, draft = work.given, work.draft
    epochs, steps = given.take("training.epochs"), given.take("training.max_steps")
    draft.put("train.steps", steps)
    if steps is None:
        draft.put("train.epochs", epochs)
    elif epochs is not None:
        draft.keep("The number of steps is given, which counts:", [("training.epochs", epochs)])
    seeds = [given.take(key) for key in ("training.random_seed", "global_config.random_seed")]
    draft.put("train.seed", seeds[0] or seeds[1] or 42)
    mixed = given.take("training.mixed_precision")
    if mixed is not None:
        words = {True: "auto", False: "fp32", "no": "fp32", "fp16": "fp16", "bf16": "bf16"}
        draft.put("train.precision", Node(words.get(mixed.value, mixed.value), mixed.place))
    by_epoch = given.take("training.checkpoint.interval_in_epochs")
    if by_epoch is not None and _flag(by_epoch, "training.checkpoint.interval_in_epochs"):
        _drop(work, "A checkpoint is written at each evaluation:", "training.checkpoint.interval")
    at_end = given.take("training.validation.validate_on_epoch")
    if at_end is not None and _flag(at_end, "training.validation.validate_on_epoch"):
        _drop(work, "Evaluated after each epoch:", "training.validation.interval")
    best = given.take("training.checkpoint.save_best_only")
    if best is not None and _flag(best, "training.checkpoint.save_best_only"):
        _drop(
            work,
            "The best checkpoint is kept, and the newest one to go on from:",
            "training.checkpoint.save_total_limit",
        )
        draft.put("train.keep", 1)
    if any(key.startswith("training.") for key in given.values):
        draft.put("train.clip", Node(None, draft.place))  # theirs
    for theirs, ours in _SAME.items():
        draft.put(ours, given.take(theirs))


def _callbacks(work: Work) -> None:
    given, draft = work.given, work.draft
    intervals = [
        (key, node)
        for key in ("training", "model.global_config", "model.encoder", "model.decoder")
        if (node := given.take(f"{key}.feature_redraw_interval")) is not None
    ]
    model = draft.root.value["model"].plain()
    if intervals and work.linear and not model.get("fixed_projection"):
        draft.put(f"{work.callback('redraw')}.every", intervals[0][1])
        intervals = [(k, n) for k, n in intervals[1:] if n.value != intervals[0][1].value]
        title = "All layers are redrawn together:"
    else:
        title = "Nothing is redrawn: there is no linear attention, or its features are fixed."
    draft.keep(title, [(f"{key}.feature_redraw_interval", node) for key, node in intervals])
    stop = {
        key: given.take(f"training.early_stopping.{key}")
        for key in ("patience", "min_delta", "restore_best_weights", "metric", "mode")
    }
    if any(node is not None for node in stop.values()):
        place = work.callback("early_stop")
        for key, ours in (
            ("patience", "patience"),
            ("min_delta", "min_delta"),
            ("restore_best_weights", "restore_best"),
        ):
            draft.put(f"{place}.{ours}", stop[key])
        rest = [(f"training.early_stopping.{k}", n) for k in ("metric", "mode") if (n := stop[k]) is not None]
        draft.keep("early_stop watches the task's main metric; another one is named as SET/METRIC:", rest)
    board, wandb, project, entity = (
        given.take(f"training.logging.{key}") for key in ("tensorboard", "wandb", "wandb_project", "wandb_entity")
    )
    boards = board is not None and _flag(board, "training.logging.tensorboard")
    weights = wandb is not None and _flag(wandb, "training.logging.wandb")
    if boards or weights:
        place = work.callback("tracking")
        if boards:
            draft.put(f"{place}.tensorboard", True)
        if weights:
            draft.put(f"{place}.wandb.project", project or draft.root.value["name"])
            draft.put(f"{place}.wandb.entity", entity)
    if not weights:
        unused = {"training.logging.wandb_project": project, "training.logging.wandb_entity": entity}
        off = [(key, node) for key, node in unused.items() if node is not None]
        draft.keep("Weights & Biases is off (training.logging.wandb):", off)
    profiling, named = given.take("training.profiling"), given.take("training.callbacks")
    if profiling is not None and _flag(profiling, "training.profiling"):
        work.callback("profile")
    if named is not None and named.plain():
        draft.keep(
            "Callbacks there; here each has its own settings above, or is part of the loop:",
            [("training.callbacks", named)],
        )


def _drop(work: Work, title: str, key: str) -> None:
    node = work.given.take(key)
    work.draft.keep(title, [(key, node)] if node is not None else [])


def _one_of(node: Node, key: str, known: dict[str, str]) -> str:
    if node.value not in known:
        raise Mistakes([Mistake(node.place, f"'{key}' must be {' or '.join(known)}, not {node.value!r}", key)])
    return str(node.value)


def _flag(node: Node, key: str) -> bool:
    if not isinstance(node.value, bool):
        raise Mistakes([Mistake(node.place, f"'{key}' must be true or false")])
    return node.value


def _number(node: Node, key: str) -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
        raise Mistakes([Mistake(node.place, f"'{key}' must be a number")])
    return node.value
