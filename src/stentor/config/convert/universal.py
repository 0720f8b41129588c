"""Configs of the universal training pipeline (TS-DIA): `model`, `global_config` with `datasets`, and `training`."""

import math
from operator import itemgetter
from pathlib import Path
from typing import Any

from stentor.config.convert.draft import Converted, read, tables
from stentor.config.convert.universal_corpora import convert_sources
from stentor.config.convert.universal_data import UniversalConversion, convert_data
from stentor.config.document import Mistake, Node
from stentor.engine.checkpoint import step_of

_THEIR_LAYERS = "{d_model,num_layers,num_heads,attention_type,d_ff,dropout}"
_OUR_LAYERS = "{d_model,layers,heads,attention,d_ff,dropout}"
_SAME, _UNSUPPORTED, _WHY = itemgetter("same", "unsupported", "why")(tables("universal"))
_TASKS = {"encoder": "diarize", "encoder_decoder": "transcribe", "decoder": "language"}
_LABEL_TYPES = ("training.eval_knobs.label_type", "global_config.data_loading.label_type", "global_config.label_type")
_LABELS = {"binary": "binary", "speaker_id": "speaker", "custom": "speaker", "ego": "ego"}
_FOCAL = {"training.loss.focal_alpha": "alpha", "training.loss.focal_gamma": "gamma"}
_EARLY_STOP = {"patience": "patience", "min_delta": "min_delta", "restore_best_weights": "restore_best"}
_METRICS = {"loss": "loss", "accuracy": "accuracy", "f1": "macro_f1"}
"""Their metrics of an evaluation, without `val_`."""
_BEST = ("training.validation.metric_for_best_model", "training.checkpoint.monitor_metric")
_LOWEST = "training.scheduler.min_lr"
_OF_CLASSES = ("cross_entropy", "nll", "kl_div", "label_smoothing")
"""Losses of one class per frame."""
_SMOOTHED = ("ego", "cross_entropy", "bce", "bce_with_logits", "pit_bce", "ats_bce", "powerset")
"""Losses with label smoothing."""
_SWITCHES = (
    ("checkpoint.interval_in_epochs", "A checkpoint is written at each evaluation:", "checkpoint.interval"),
    ("validation.validate_on_epoch", "Evaluated after each epoch:", "validation.interval"),
    (
        "checkpoint.save_best_only",
        "The best checkpoint is kept, and the newest one to resume from:",
        "checkpoint.save_total_limit",
    ),
)
"""Switches of `training` that override another key: (switch, comment above that key, key)."""


def convert(path: Path) -> Converted:
    """A run file for the family `transformer`. A file may hold any of the three sections; what it leaves out has our
    defaults, or theirs where a section is given. Raises `Mistakes` for keys and values that are not known."""
    job = UniversalConversion(read(path), null_is_default=True)
    for key in job.below("logging"):  # as its document shows the section
        job.values[f"training.{key}"] = job.values.pop(key)
    job.move("model.name", "name", path.stem)
    job.move("training.checkpoint.save_dir", "output")
    _task(job)
    _model(job)
    convert_sources(job)
    convert_data(job)
    _losses(job)
    _optim(job)
    _train(job)
    _callbacks(job)
    job.leave_out_each(_UNSUPPORTED)
    return job.converted(f"Converted from {path.name} of the universal pipeline by `stentor config convert universal`.")


def _task(job: UniversalConversion) -> None:
    """The task that the model's kind is for; with labels of frames, diarization."""
    key = next((key for key in _LABEL_TYPES if key in job.values), _LABEL_TYPES[0])
    labels = job.values.get(key)
    job.known.add(key)
    job.leave_out("Another label_type counts:", *(other for other in _LABEL_TYPES if other != key))
    job.kind = job.chosen("model.model_type", {kind: kind for kind in _TASKS}, job.kind)
    if labels is not None and job.kind == "encoder_decoder":
        job.kind = "encoder"
        job.notes.append(
            "label_type asks for labels of frames, which an encoder alone gives here: the decoder is left out. Without "
            "label_type the whole model becomes a recogniser (task: transcribe)."
        )
        job.leave_out("Frames are labelled by an encoder alone; the decoder:", *job.below("model.decoder"))
    elif labels is not None and job.kind == "decoder":
        job.notes.append("label_type is left out: a decoder alone is a language model, which hears nothing.")
        job.leave_out("Of diarization, which a decoder alone cannot do:", key)
    job.task = _TASKS[job.kind]
    job.put("task.type", job.task)
    if job.task != "diarize":
        return
    job.labels = job.chosen(key, _LABELS, "binary")
    if labels is not None and labels.value == "custom":
        job.notes.append(
            "label_type: custom is code there. Here a plug-in's class of labels (docs/extend.md) is named "
            "under task.labels; until then the file says `speaker`."
        )
    job.put("task.labels", job.labels, labels)


def _model(job: UniversalConversion) -> None:
    job.put("model.type", "transformer")
    job.put("model.kind", job.kind)
    for part in ("encoder", "decoder"):
        if part not in job.kind.split("_"):
            job.leave_out(f"A model of the kind {job.kind} has no {part}:", *job.below(f"model.{part}"))
    for part, ours in (("global_config", "shared"), ("encoder", "encoder"), ("decoder", "decoder")):
        theirs = f"model.{part}"
        job.move_each({f"{theirs}.{_THEIR_LAYERS}": f"model.{ours}.{_OUR_LAYERS}"})
        linear = "linear" in str(job.made(f"model.{ours}.attention"))
        job.linear = job.linear or linear
        if linear or part == "global_config":
            job.move(f"{theirs}.nb_features", f"model.{ours}.attention_features")
        job.leave_out("Random features are of linear attention:", f"{theirs}.nb_features")
        activation, positions = job.take(f"{theirs}.activation"), job.take(f"{theirs}.positional")
        if activation is not None:
            job.put(f"model.{ours}.activation", str(activation.value).lower(), activation)
        if positions is not None:
            value = str(positions.value)
            job.put(f"model.{ours}.positions", "learned" if value == "learnable" else value, positions)
        switches = {key: job.values.get(key) for key in (f"{theirs}.use_rezero", f"{theirs}.use_scalenorm")}
        norms = [(key, node) for key, node in switches.items() if job.take_flag(key)]
        for key, node in norms[:1]:
            job.put(f"model.{ours}.norm", key.rpartition("_")[2], node)
        job.comment_out("Where both are true, theirs takes ReZero:", norms[1:])
        job.leave_out("No layer of theirs reads it:", *job.below(f"{theirs}.positional_encoding"))
    parts = [section for part in ("shared", "encoder", "decoder") if (section := job.made(f"model.{part}")) is not None]
    if parts and not any("positions" in section for section in parts):
        job.put("model.shared.positions", "none")
        job.comments += ["", "As in theirs, no layer encodes positions. Often better:"]
        job.comments += ["  model.shared.positions: sinusoidal"]


def _losses(job: UniversalConversion) -> None:
    main, smoothing = job.take("training.loss.main"), job.take("training.loss.label_smoothing")
    auxiliary = job.take_below("training.loss.auxiliary")
    job.take("training.loss.auxiliary")  # an empty one
    if main is None:
        values = [("training.loss.label_smoothing", smoothing), *auxiliary, *((key, job.take(key)) for key in _FOCAL)]
        job.comment_out("No main loss is given, so the task's own is used; in addition:", values)
        return
    theirs = str(main.value)
    term, kind = "text", "cross_entropy"
    if job.task == "diarize":
        term = "speech" if job.labels == "binary" else "speakers"
        usual = {"binary": "bce_with_logits", "speaker": "pit_bce", "ego": "ego"}[job.labels]
        replaced = theirs in _OF_CLASSES or (term == "speakers" and theirs in ("bce", "bce_with_logits"))
        kind = usual if replaced or job.labels == "ego" else theirs
    if kind != theirs and theirs != "label_smoothing":
        job.comment_out(f"Here {kind}, because {_WHY[term]}:", [("training.loss.main", main)])
    job.put(f"losses.{term}.type", kind, main)
    if kind not in _SMOOTHED:
        job.comment_out(f"{kind} smooths no labels:", [("training.loss.label_smoothing", smoothing)])
    elif smoothing is not None or theirs == "label_smoothing":
        job.put(f"losses.{term}.label_smoothing", smoothing or 0.1)
    if kind == "focal":
        job.move_each(_FOCAL, f"losses.{term}.")
    job.leave_out("Only of focal loss:", *_FOCAL)
    if job.task != "diarize":
        job.comment_out(f"The task {job.task} has no such terms:", auxiliary)
        return
    for key, weight in auxiliary:
        name = key.rpartition(".")[2]
        kind = "weight_reg" if name == "norm_reg" else name  # `norm_reg` here is of the hidden states
        job.put_each(f"losses.{name}", {"type": kind, "weight": weight}, weight)
        if name == "contrastive":
            job.put("model.embedding", 128)


def _optim(job: UniversalConversion) -> None:
    if job.below("training.optimizer"):
        job.put("optim", {"type": "adamw", "weight_decay": 0.0, "betas": [0.9, 0.999]})  # theirs
    kind, shape = (job.values.get(f"training.{key}.type") for key in ("optimizer", "scheduler"))
    if kind is not None and kind.value in ("sgd", "rmsprop"):
        job.put("optim.momentum", 0.0)
    job.put("schedule.type", "constant")
    job.put("schedule.warmup_steps", 0)
    peak = job.number("training.optimizer.lr", 0.0, -math.inf)
    lowest = job.number(_LOWEST, 0.0, -math.inf)
    if shape is not None and shape.value == "exponential":
        job.put("schedule.step_size", 1)
    job.move_each({k: v for k, v in _SAME.items() if v.startswith(("optim.", "schedule."))})
    if _LOWEST in job.values and peak > 0:
        job.put("schedule.min_ratio", float(f"{lowest / peak:.6g}"), job.take(_LOWEST))
    job.leave_out("The lowest learning rate is a share of the peak here, which is not given:", _LOWEST)


def _train(job: UniversalConversion) -> None:
    epochs, steps = (job.values.get(f"training.{key}") for key in ("epochs", "max_steps"))
    job.move("training.max_steps", "train.steps")
    if epochs is not None and epochs.value == 0:
        title = "Theirs only makes data; `stentor prepare` does. Training has its usual length:"
        job.leave_out(title, "training.epochs")
    elif steps is None:
        job.move("training.epochs", "train.epochs")
    else:
        job.leave_out("The number of steps is given, which counts:", "training.epochs")
    _resume(job)
    greater = job.take("training.validation.greater_is_better")
    best = [_metric(job, key, None if i else greater) for i, key in enumerate(_BEST)]
    job.put("train.best_metric", best[0] or best[1])
    seeds = [job.take(key) for key in ("training.random_seed", "global_config.random_seed")]
    job.put("train.seed", seeds[0] or seeds[1] or 42)
    mixed = job.take("training.mixed_precision")
    if mixed is not None:
        words = {True: "auto", False: "fp32", "no": "fp32", "fp16": "fp16", "bf16": "bf16"}
        job.put("train.precision", words.get(mixed.value, mixed.value), mixed)
    if job.below("training.checkpoint"):
        job.put("train.keep", Node(None, job.place))  # theirs
    for switch, title, key in _SWITCHES:
        if job.take_flag(f"training.{switch}"):
            job.leave_out(title, f"training.{key}")
            if key == "checkpoint.save_total_limit":
                job.put("train.keep", 1)
    if job.below("training"):
        job.put("train.clip", Node(None, job.place))  # theirs
    job.move_each(_SAME)


def _resume(job: UniversalConversion) -> None:
    node, title = job.take(key := "training.checkpoint.resume"), "Of resuming:"
    restored = [f"{key}_restore_{part}" for part in ("optimizer", "scheduler", "trainer_state")]
    flags = [(flag, job.values.get(flag)) for flag in restored]
    switches = [job.take_flag(flag, True) for flag in restored]
    if node is not None and (all(switches) or step_of(Path(str(node.value))) < 0):
        instead = "Convert and train the run it comes from, then name a checkpoint of that; or leave it out"
        job.resume(key, node, instead)
    elif node is not None:
        job.put("model.init", f"{node.plain()}/export", node)
        title = "Training starts from the weights of the checkpoint alone (model.init):"
    job.comment_out(title, flags)


def _callbacks(job: UniversalConversion) -> None:
    parts = ("training", "model.global_config", "model.encoder", "model.decoder")
    values = [(key, job.take(key)) for key in (f"{part}.feature_redraw_interval" for part in parts)]
    intervals = [(key, node) for key, node in values if node is not None]
    title = "Nothing is redrawn: there is no linear attention, or its features are fixed."
    if intervals and job.linear and not job.made("model.fixed_projection"):
        job.put_callback("redraw", {"every": intervals[0][1]})
        intervals = [(k, n) for k, n in intervals[1:] if n.value != intervals[0][1].value]
        title = "All layers are redrawn together:"
    job.comment_out(title, intervals)
    if job.below(prefix := "training.early_stopping"):
        metric = _metric(job, f"{prefix}.metric", job.take(f"{prefix}.mode"))
        rest = {ours: job.take(f"{prefix}.{key}") for key, ours in _EARLY_STOP.items()}
        job.put_callback("early_stop", {"metric": metric, **rest})
    tensorboard, wandb = (job.take_flag(f"training.logging.{key}") for key in ("tensorboard", "wandb"))
    project, entity = (f"training.logging.wandb_{key}" for key in ("project", "entity"))
    if tensorboard or wandb:
        settings: dict[str, Any] = {"tensorboard": tensorboard or None}
        if wandb:
            settings |= {"wandb.project": job.take(project) or job.made("name"), "wandb.entity": job.take(entity)}
        job.put_callback("tracking", settings)
    job.leave_out("Weights & Biases is off (training.logging.wandb):", project, entity)
    callbacks = job.take("training.callbacks")
    if job.take_flag("training.profiling"):
        job.put_callback("profile", {})
    if callbacks is not None and callbacks.plain():
        title = "Callbacks there; here each has its own settings above, or is part of the loop:"
        job.comment_out(title, [("training.callbacks", callbacks)])


def _metric(job: UniversalConversion, key: str, mode: Node | None) -> str | None:
    """`SET/METRIC` of the first evaluation set, for a metric of theirs, which is the mean over all sets. `mode`: `min`
    and `max`, or whether greater is better."""
    node, sets = job.take(key), list(job.made("data.eval") or ())
    if node is None:
        return None
    ours = _METRICS.get(str(node.value).removeprefix("val_"))
    if ours is None or (ours != "loss" and job.labels not in ("binary", "ego")):
        job.wrong(node, key, "val_loss, or for binary and ego labels val_accuracy or val_f1")
        return None
    direction = "min" if ours == "loss" else "max"
    if mode is not None and mode.value not in (direction, direction == "max"):
        job.mistakes.append(Mistake(mode.place, f"the direction of {node.value} is {direction}: leave it out", key))
    if len(sets) > 1:
        job.comment_out(f"Theirs is the mean over all sets; here that of {sets[0]} counts:", [(key, node)])
    if not sets:
        job.comment_out("Without an evaluation set:", [(key, node)])
    return f"{sets[0]}/{ours}" if sets else None
