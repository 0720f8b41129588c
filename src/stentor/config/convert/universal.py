"""Configs of the universal training pipeline (TS-DIA): `model`, `global_config` with `datasets`, and `training`."""

from pathlib import Path

from stentor.config.convert.draft import Converted, Draft, one_of, read
from stentor.config.convert.universal_data import Conversion, convert_data
from stentor.config.document import Mistake, Mistakes, Node, Place

_LAYERS = {
    "d_model": "d_model",
    "num_layers": "layers",
    "num_heads": "heads",
    "attention_type": "attention",
    "d_ff": "d_ff",
    "dropout": "dropout",
}
"""Settings of a stack of layers."""
_PARTS = "{global_config,encoder,decoder}"
_SAME = {
    **{f"training.optimizer.{key}": f"optim.{key}" for key in ("type", "lr", "weight_decay", "betas")},
    "training.optimizer.epsilon": "optim.eps",
    **{f"training.optimizer.{key}": f"optim.{key}" for key in ("momentum", "amsgrad", "nesterov")},
    **{f"training.scheduler.{key}": f"schedule.{key}" for key in ("type", "warmup_steps")},
    "training.scheduler.num_cycles": "schedule.cycles",
    **{f"training.scheduler.{key}": f"schedule.{key}" for key in ("step_size", "gamma", "patience")},
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
_UNSUPPORTED = {
    "it follows from the features, by `model.features.num_mel_bins` and `stack`": f"model.{_PARTS}.input_dim",
    "tensors have no fixed batch size, and the device is `train.device`": f"model.{_PARTS}.{{device,batch_size}}",
    "the labels of the task say how many outputs there are": f"model.{_PARTS}.num_classes",
    "`redraw` counts optimizer steps for the whole model, by itself": f"model.{_PARTS}.auto_check_redraw",
    "a decoder attends to the encoder where there is one": f"model.{_PARTS}.use_cross_attention",
    "the peak is `optim.lr`, and the schedule ends with the run": "training.scheduler.{max_lr,decay_steps}",
    "a plateau is one of the task's main metric, which knows its direction": "training.scheduler.mode",
    "losses are sums that are divided by the targets of the whole step, over all batches and processes": (
        "training.loss.reduction"
    ),
    "fp16 is scaled by itself where `train.precision` asks for it": "training.amp_loss_scale",
    "the task's main metric on the first evaluation set picks the best checkpoint": (
        "training.{validation.metric_for_best_model,validation.greater_is_better,checkpoint.monitor_metric}"
    ),
    "checkpoints always hold all of it, and the same command again goes on where it was": (
        "training.checkpoint.{resume,snapshot_optimizer,snapshot_scheduler,snapshot_features,resume_restore_optimizer,"
        "resume_restore_scheduler,resume_restore_trainer_state}"
    ),
    "processes are started by `stentor train RUN.yaml --processes N`, and kept in step": (
        "training.distributed.{backend,world_size,local_rank,sync_gradient_barrier,gradient_as_bucket_view,static_graph}"
    ),
    "everything is logged each time": "training.logging.{log_metrics,log_model,log_gradients}",
    "records are listed as a run begins, without a cache, and all of `data.train` are mixed": (
        "global_config.{cache_dir,combine_training_sets}"
    ),
    "memory is pinned and workers are kept where it helps, and no record is dropped for the size of a batch": (
        "training.performance.{pin_memory,persistent_workers,drop_last,batch_shim}"
    ),
    "see `task.windows` (diarize) and `task.beams` (transcribe)": (
        "training.eval_knobs.{batch_size,beam_width,sliding_window,min_speaker_dim}"
    ),
}
"""What has no key here, by the reason; see `expanded`."""
_SECTIONS = {
    "training.tuning": "settings are searched for by a loop around `stentor train RUN.yaml key=value`",
    "training.safeguards": "a step with a loss or gradient that is not finite is skipped: `train.max_skipped`",
}
"""Free sections without a counterpart."""
_TASKS = {"encoder": "diarize", "encoder_decoder": "transcribe", "decoder": "language"}
_LABELS = {"binary": "binary", "speaker_id": "speaker", "custom": "speaker", "ego": "ego"}
_POSITIONS = {"learnable": "learned"}
_EARLY_STOP = {"patience": "patience", "min_delta": "min_delta", "restore_best_weights": "restore_best"}
_OF_CLASSES = ("cross_entropy", "nll", "kl_div", "label_smoothing")
"""Losses of one class per frame."""
_SMOOTHED = ("ego", "cross_entropy", "bce", "bce_with_logits", "pit_bce", "ats_bce", "powerset")
"""Losses with label smoothing."""


_SWITCHES = (
    ("checkpoint.interval_in_epochs", "A checkpoint is written at each evaluation:", "checkpoint.interval"),
    ("validation.validate_on_epoch", "Evaluated after each epoch:", "validation.interval"),
    (
        "checkpoint.save_best_only",
        "The best checkpoint is kept, and the newest one to go on from:",
        "checkpoint.save_total_limit",
    ),
)
"""Switches of `training` that override another key: (switch, comment above that key, key)."""


def convert(path: Path) -> Converted:
    """A run file for the family `transformer`. A file may hold any of the three sections; what it leaves out has our
    defaults, or theirs where a section is given. Raises `Mistakes` for keys and values that are not known."""
    foreign = read(path, "")
    foreign.drop_nulls()
    for key in [key for key in foreign.values if key.startswith("logging.")]:  # as its document shows the section
        foreign.values[f"training.{key}"] = foreign.values.pop(key)
    place = Place(0, 1, str(path))
    job = Conversion(foreign, Draft(place))
    draft = job.draft
    draft.put("name", foreign.take("model.name") or path.stem)
    draft.put("output", foreign.take("training.checkpoint.save_dir"))
    _task(job)
    _model(job)
    mistakes = convert_data(job)
    _losses(job)
    _optim(job)
    _train(job)
    _callbacks(job)
    draft.comment_out_unsupported(foreign, _UNSUPPORTED.items())
    for section, reason in _SECTIONS.items():
        values = [(section, foreign.take(section)), *foreign.take_below(section)]
        draft.comment_out(f"Without a key here: {reason}.", values)
    if mistakes := mistakes + foreign.unknown():
        raise Mistakes(mistakes)
    head = f"Converted from {path.name} of the universal pipeline by `stentor config convert universal`."
    return draft.converted(head, foreign)


def _task(job: Conversion) -> None:
    """The task that the model's kind is for; with labels of frames, diarization."""
    foreign, draft = job.foreign, job.draft
    kind, labels = foreign.take("model.model_type"), foreign.take("training.eval_knobs.label_type")
    if kind is not None:
        one_of(kind, "model.model_type", _TASKS)
        job.kind = str(kind.value)
    if labels is not None and job.kind != "encoder":
        draft.notes.append(
            "label_type asks for labels of frames, which an encoder alone gives here: the decoder is left out. Without "
            "label_type the whole model becomes a recogniser (task: transcribe)."
            if job.kind == "encoder_decoder"
            else "label_type is left out: a decoder alone is a language model, which hears nothing."
        )
        if job.kind == "encoder_decoder":
            job.kind = "encoder"
            decoder = foreign.take_below("model.decoder")
            draft.comment_out("Frames are labelled by an encoder alone; the decoder:", decoder)
        else:
            values = [("training.eval_knobs.label_type", labels)]
            draft.comment_out("Of diarization, which a decoder alone cannot do:", values)
    job.task = _TASKS[job.kind]
    draft.put("task.type", job.task)
    if job.task != "diarize":
        return
    job.labels = "binary" if labels is None else one_of(labels, "training.eval_knobs.label_type", _LABELS)
    if labels is not None and labels.value == "custom":
        draft.notes.append(
            "label_type: custom is code there. Here a plug-in's class of labels (docs/extend.md) is named "
            "under task.labels; until then the file says `speaker`."
        )
    draft.put("task.labels", Node(job.labels, labels.place if labels else draft.place))


def _model(job: Conversion) -> None:
    foreign, draft = job.foreign, job.draft
    draft.put("model.type", "transformer")
    draft.put("model.kind", job.kind)
    unused = [part for part in ("encoder", "decoder") if part not in job.kind.split("_")]
    for part in unused:
        draft.comment_out(f"A model of the kind {job.kind} has no {part}:", foreign.take_below(f"model.{part}"))
    for part, ours in (("global_config", "shared"), ("encoder", "encoder"), ("decoder", "decoder")):
        draft.put_each(foreign, {f"model.{part}.{key}": f"model.{ours}.{name}" for key, name in _LAYERS.items()})
        features = foreign.take(f"model.{part}.nb_features")
        attention = draft.root.value["model"].value.get(ours)
        linear = attention is not None and "linear" in str(attention.plain().get("attention"))
        job.linear = job.linear or linear
        if linear or part == "global_config":
            draft.put(f"model.{ours}.attention_features", features)
        else:
            draft.comment_out("Random features are of linear attention:", [(f"model.{part}.nb_features", features)])
        activation, positions = foreign.take(f"model.{part}.activation"), foreign.take(f"model.{part}.positional")
        if activation is not None:
            draft.put(f"model.{ours}.activation", Node(str(activation.value).lower(), activation.place))
        if positions is not None:
            value = str(positions.value)
            draft.put(f"model.{ours}.positions", Node(_POSITIONS.get(value, value), positions.place))
        switches = {key: foreign.values.get(key) for key in (f"model.{part}.use_rezero", f"model.{part}.use_scalenorm")}
        norms = [(key, node) for key, node in switches.items() if foreign.take_flag(key)]
        for key, node in norms[:1]:
            norm = key.rpartition("_")[2]
            draft.put(f"model.{ours}.norm", Node(norm, node.place if node is not None else draft.place))
        draft.comment_out("Where both are true, theirs takes ReZero:", norms[1:])
        draft.comment_out("No layer of theirs reads it:", foreign.take_below(f"model.{part}.positional_encoding"))
    _positions(job)


def _positions(job: Conversion) -> None:
    """`none` where the file has no positions: no layer of theirs adds any."""
    draft = job.draft
    sections = draft.root.value["model"].plain()
    if sections.keys() & {"shared", "encoder", "decoder"} and not any(
        "positions" in sections.get(part, {}) for part in ("shared", "encoder", "decoder")
    ):
        draft.put("model.shared.positions", "none")
        draft.comments += ["", "Positions are not told apart, as in theirs, where no layer adds any. Often better:"]
        draft.comments += ["  model.shared.positions: sinusoidal"]


def _losses(job: Conversion) -> None:
    foreign, draft = job.foreign, job.draft
    main, smoothing = foreign.take("training.loss.main"), foreign.take("training.loss.label_smoothing")
    auxiliary = foreign.take_below("training.loss.auxiliary")
    focal = [(key, foreign.take(f"training.loss.focal_{key}")) for key in ("alpha", "gamma")]
    foreign.take("training.loss.auxiliary")  # an empty one
    if main is None:
        values = [("training.loss.label_smoothing", smoothing), *auxiliary]
        draft.comment_out("No main loss is given, so the task's own; beside it:", values)
        return
    theirs = str(main.value)
    if job.task == "diarize":
        term = "speech" if job.labels == "binary" else "speakers"
        usual = {"binary": "bce_with_logits", "speaker": "pit_bce", "ego": "ego"}[job.labels]
        replaced = theirs in _OF_CLASSES or (term == "speakers" and theirs in ("bce", "bce_with_logits"))
        kind = usual if replaced or job.labels == "ego" else theirs
    else:
        term, kind = "text", "cross_entropy"
    if kind != theirs and theirs != "label_smoothing":
        why = {
            "speech": "of two classes, cross entropy is binary cross entropy",
            "speakers": "speakers have no order of their own: the best one is taken for each item",
            "text": "text is learned by the cross entropy of its tokens",
        }[term]
        draft.comment_out(f"Here {kind}, because {why}:", [("training.loss.main", main)])
    draft.put(f"losses.{term}.type", Node(kind, main.place))
    if kind not in _SMOOTHED:
        draft.comment_out(f"{kind} smooths no labels:", [("training.loss.label_smoothing", smoothing)])
    elif smoothing is not None or theirs == "label_smoothing":
        draft.put(f"losses.{term}.label_smoothing", smoothing or 0.1)
    if kind == "focal":
        for key, node in focal:
            draft.put(f"losses.{term}.{key}", node)
    else:
        draft.comment_out("Only of focal loss:", [(f"training.loss.focal_{key}", node) for key, node in focal])
    if job.task != "diarize":
        draft.comment_out(f"The task {job.task} has no such terms:", auxiliary)
        return
    for key, weight in auxiliary:
        name = key.rpartition(".")[2]
        draft.put(f"losses.{name}.type", Node(name, weight.place))
        draft.put(f"losses.{name}.weight", weight)
        if name == "contrastive":
            draft.put("model.embedding", 128)


def _optim(job: Conversion) -> None:
    foreign, draft = job.foreign, job.draft
    if any(key.startswith("training.optimizer.") for key in foreign.values):
        draft.put("optim", {"type": "adamw", "weight_decay": 0.0, "betas": [0.9, 0.999]})  # theirs
    kind = foreign.values.get("training.optimizer.type")
    if kind is not None and kind.value in ("sgd", "rmsprop"):
        draft.put("optim.momentum", 0.0)
    scheduler = any(key.startswith("training.scheduler.") for key in foreign.values)
    draft.put("schedule.type", "constant")
    draft.put("schedule.warmup_steps", 0)
    least, peak = foreign.take("training.scheduler.min_lr"), foreign.values.get("training.optimizer.lr")
    shape = foreign.values.get("training.scheduler.type")
    if scheduler and shape is not None and shape.value == "exponential":
        draft.put("schedule.step_size", 1)
    draft.put_each(foreign, {k: v for k, v in _SAME.items() if v.startswith(("optim.", "schedule."))})
    if least is not None:
        if peak is None or not _number(peak, "training.optimizer.lr") > 0:
            title = "The lowest learning rate is a share of the peak here, which is not given:"
            draft.comment_out(title, [("training.scheduler.min_lr", least)])
        else:
            share = _number(least, "training.scheduler.min_lr") / _number(peak, "training.optimizer.lr")
            draft.put("schedule.min_ratio", Node(float(f"{share:.6g}"), least.place))


def _train(job: Conversion) -> None:
    foreign, draft = job.foreign, job.draft
    epochs, steps = foreign.take("training.epochs"), foreign.take("training.max_steps")
    draft.put("train.steps", steps)
    if epochs is not None and epochs.value == 0:
        title = "Theirs only makes data; `stentor prepare` does. Training has its usual length:"
        draft.comment_out(title, [("training.epochs", epochs)])
    elif steps is None:
        draft.put("train.epochs", epochs)
    else:
        draft.comment_out("The number of steps is given, which counts:", [("training.epochs", epochs)])
    if foreign.values.get("training.checkpoint.resume") is not None:
        draft.notes.append(
            "checkpoint.resume names a checkpoint of theirs, which cannot be read here: convert and train that run "
            "too, and name its folder as model.init."
        )
    seeds = [foreign.take(key) for key in ("training.random_seed", "global_config.random_seed")]
    draft.put("train.seed", seeds[0] or seeds[1] or 42)
    mixed = foreign.take("training.mixed_precision")
    if mixed is not None:
        words = {True: "auto", False: "fp32", "no": "fp32", "fp16": "fp16", "bf16": "bf16"}
        draft.put("train.precision", Node(words.get(mixed.value, mixed.value), mixed.place))
    if any(key.startswith("training.checkpoint.") for key in foreign.values):
        draft.put("train.keep", Node(None, draft.place))  # theirs
    for switch, title, key in _SWITCHES:
        if foreign.take_flag(f"training.{switch}"):
            draft.comment_out(title, foreign.take_each([key], "training."))
            if key == "checkpoint.save_total_limit":
                draft.put("train.keep", 1)
    if any(key.startswith("training.") for key in foreign.values):
        draft.put("train.clip", Node(None, draft.place))  # theirs
    draft.put_each(foreign, _SAME)


def _callbacks(job: Conversion) -> None:
    foreign, draft = job.foreign, job.draft
    parts = ("training", "model.global_config", "model.encoder", "model.decoder")
    values = foreign.take_each(f"{part}.feature_redraw_interval" for part in parts)
    intervals = [(key, node) for key, node in values if node is not None]
    model = draft.root.value["model"].plain()
    if intervals and job.linear and not model.get("fixed_projection"):
        draft.put(f"{job.callback('redraw')}.every", intervals[0][1])
        intervals = [(k, n) for k, n in intervals[1:] if n.value != intervals[0][1].value]
        title = "All layers are redrawn together:"
    else:
        title = "Nothing is redrawn: there is no linear attention, or its features are fixed."
    draft.comment_out(title, intervals)
    prefix = "training.early_stopping."
    stop = {key: foreign.take(prefix + key) for key in (*_EARLY_STOP, "metric", "mode")}
    if any(node is not None for node in stop.values()):
        callback = job.callback("early_stop")
        for key, ours in _EARLY_STOP.items():
            draft.put(f"{callback}.{ours}", stop[key])
        values = [(prefix + key, stop[key]) for key in ("metric", "mode")]
        draft.comment_out("early_stop watches the task's main metric; another one is named as SET/METRIC:", values)
    tensorboard, wandb = (foreign.take_flag(f"training.logging.{key}") for key in ("tensorboard", "wandb"))
    names = foreign.take_each(("training.logging.wandb_project", "training.logging.wandb_entity"))
    if tensorboard or wandb:
        callback = job.callback("tracking")
        if tensorboard:
            draft.put(f"{callback}.tensorboard", True)
        if wandb:
            (_, project), (_, entity) = names
            draft.put(f"{callback}.wandb.project", project or draft.root.value["name"])
            draft.put(f"{callback}.wandb.entity", entity)
    if not wandb:
        draft.comment_out("Weights & Biases is off (training.logging.wandb):", names)
    callbacks = foreign.take("training.callbacks")
    if foreign.take_flag("training.profiling"):
        job.callback("profile")
    if callbacks is not None and callbacks.plain():
        title = "Callbacks there; here each has its own settings above, or is part of the loop:"
        draft.comment_out(title, [("training.callbacks", callbacks)])


def _number(node: Node, key: str) -> float:
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
        raise Mistakes([Mistake(node.place, f"'{key}' must be a number")])
    return node.value
