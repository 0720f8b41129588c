"""The YAML of the universal training pipeline becomes run files that keep every value."""

import re

import pytest

from stentor.cli import main
from stentor.config.convert.universal import convert
from stentor.config.document import Mistakes
from stentor.config.load import load

MODEL = """\
model:
  model_type: encoder_decoder
  name: performer_translator
  global_config:
    dropout: 0.1
    batch_size: 32
    d_ff: 4
  encoder:
    d_model: 512
    num_layers: 6
    num_heads: 8
    attention_type: linear
  decoder:
    d_model: 512
    num_layers: 6
    num_heads: 8
    attention_type: causal_linear
"""
DATASET = """\
global_config:
  corpus_dir: ./data
  output_dir: ./manifests
  feature_type: fbank
  num_mel_bins: 80
  frame_length: 0.025
  frame_shift: 0.01
  sampling_rate: 16000
  preemph_coeff: 0.97
  window_type: povey
  dither: 0.0
  snip_edges: false
  remove_dc_offset: true
  low_freq: 20.0
  high_freq: -400.0
  num_ceps: 13
  cepstral_lifter: 22
  use_energy: false
  storage_path: null
  num_jobs: 1
  progress_bar: true
datasets:
  - name: ami
"""
TRAINING = """\
training:
  epochs: 50
  batch_size: 32
  random_seed: 42
  optimizer:
    type: adamw
    lr: 2e-4
    weight_decay: 0.01
    betas: [0.9, 0.999]
  scheduler:
    type: cosine
    min_lr: 1e-6
    warmup_steps: 1000
  gradient_clipping: 1.0
  gradient_accumulation_steps: 4
  mixed_precision: true
  feature_redraw_interval: 100
  fixed_projection: false
  loss:
    main: cross_entropy
    label_smoothing: 0.1
    auxiliary:
      norm_reg: 0.1
  validation:
    interval: 500
    batch_size: 64
  early_stopping:
    patience: 5
    metric: val_loss
    min_delta: 0.001
    mode: min
  checkpoint:
    save_dir: ./checkpoints
    interval: 1000
    save_total_limit: 5
    resume: null
  logging:
    interval: 50
    tensorboard: true
    wandb: true
    wandb_project: my-project
    log_metrics: [loss, accuracy]
  performance:
    num_workers: 4
    pin_memory: true
  eval_knobs:
    label_type: binary
    max_duration: null
"""
MINIMAL = """\
training:
  epochs: 10
  batch_size: 32
  optimizer:
    type: adamw
    lr: 1e-4
  scheduler:
    type: cosine
    min_lr: 1e-6
  checkpoint:
    save_dir: ./checkpoints
    interval: 1000
"""
FULL = MODEL + DATASET + TRAINING
"""The document's three snippets in one file, as its system has them."""


def of_text(tmp_path, text):
    (tmp_path / "given.yaml").write_text(text)
    return convert(tmp_path / "given.yaml")


def converted(tmp_path, text):
    result = of_text(tmp_path, text)
    (tmp_path / "ours.yaml").write_text(result.text)
    return result, load(tmp_path / "ours.yaml").config


def mistakes(tmp_path, text):
    with pytest.raises(Mistakes) as caught:
        of_text(tmp_path, text)
    return [str(m).replace(f"{tmp_path}/", "") for m in caught.value.mistakes]


def comments(result):
    return [line.lstrip("# ") for line in result.text.splitlines() if line.startswith("#")]


def test_the_document_s_config(tmp_path):
    result, config = converted(tmp_path, FULL)
    assert (config.name, config.output) == (result.name, "./checkpoints") == ("performer_translator", "./checkpoints")
    assert (config.task.type, config.task.labels.type) == ("diarize", "binary")

    model = config.model
    assert (model.type, model.kind, model.fixed_projection) == ("transformer", "encoder", False)
    encoder = model.encoder
    assert (encoder.d_model, encoder.layers, encoder.heads, encoder.attention) == (512, 6, 8, "linear")
    assert (encoder.dropout, encoder.d_ff, encoder.norm) == (0.1, 4, "layernorm")
    features = model.features
    assert (features.type, features.num_mel_bins) == ("fbank", 80)
    assert (features.frame_length, features.frame_shift) == (0.025, 0.01)
    assert (features.window_type, features.low_freq, features.high_freq, features.store) == ("povey", 20, -400, None)

    [train], dev = config.data.train, config.data.eval["dev"]
    assert (train.type, train.name, train.split, dev.split) == ("corpus", "ami", "train", "dev")
    assert (str(train.from_), str(train.to), train.utterances) == ("data/ami", "manifests", False)
    assert (config.data.max_items, config.data.workers) == (32, 4)
    # Room for 32 chunks (and 64 in evaluation) at 100 frames a second.
    frames = config.task.chunk * 100
    assert (config.data.batch_tokens, config.data.eval_batch_tokens) == (32 * frames, 64 * frames)

    optim, schedule, train = config.optim, config.schedule, config.train
    assert (optim.type, optim.lr, optim.weight_decay, optim.betas) == ("adamw", 2e-4, 0.01, (0.9, 0.999))
    assert (schedule.type, schedule.warmup_steps, schedule.min_ratio) == ("cosine", 1000, 0.005)
    assert (train.epochs, train.seed, train.clip, train.accumulate, train.precision) == (50, 42, 1, 4, "auto")
    assert (train.eval_every, train.save_every, train.keep, train.log_every) == (500, 1000, 5, 50)

    speech, norm = config.losses["speech"], config.losses["norm_reg"]
    assert (speech.type, speech.label_smoothing, norm.type, norm.weight) == ("bce_with_logits", 0.1, "weight_reg", 0.1)
    redraw, stop, tracking = config.callbacks
    assert (redraw.type, redraw.every) == ("redraw", 100)
    assert (stop.type, stop.patience, stop.min_delta, stop.metric) == ("early_stop", 5, 0.001, "dev/loss")
    assert (tracking.tensorboard, tracking.wandb.project, tracking.wandb.entity) == (True, "my-project", None)


LEFT_OUT = """\
Frames are labelled by an encoder alone; the decoder:
model.decoder.attention_type: causal_linear
training.logging.log_metrics: [loss, accuracy]
training.performance.pin_memory: true
model.global_config.batch_size: 32
global_config.num_jobs: 1
training.loss.main: cross_entropy
"""


def test_what_has_no_counterpart_is_named(tmp_path):
    result, _ = converted(tmp_path, FULL)
    remarks = comments(result)
    assert not {*LEFT_OUT.splitlines()} - {*remarks}
    assert any("label_type" in note and "decoder is left out" in note for note in result.notes)
    assert any("no splits of ami are given" in note for note in result.notes)


PAIRS = """
encoder_decoder=encoder performer_translator=other linear=softmax causal_linear=softmax ./data=/data fbank=mfcc
./manifests=/manifests povey=hamming ami=icsi adamw=adam cosine=linear cross_entropy=focal binary=speaker_id
./checkpoints=/checkpoints my-project=mine true=false false=true
"""
OTHER = dict(pair.split("=") for pair in PAIRS.split())
OTHER |= {"[0.9, 0.999]": "[0.8, 0.9]", "[loss, accuracy]": "[loss]"}
VALUES = [
    (number, match[1])
    for number, line in enumerate(FULL.splitlines())
    if (match := re.match(r"\s*(?:- )?\w+: (.+)$", line)) and match[1] not in ("null", "min", "val_loss")
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return of_text(tmp_path_factory.mktemp("whole"), FULL).text


@pytest.mark.parametrize(
    ("number", "value"), VALUES, ids=[FULL.splitlines()[n].split(":")[0].strip() for n, _ in VALUES]
)
def test_no_value_is_lost(tmp_path, whole, number, value):
    """Another value in any line makes another run file."""
    lines = FULL.splitlines()
    lines[number] = lines[number].replace(value, OTHER.get(value) or str(float(value) / 2 or 0.5))
    if value.isdigit():
        lines[number] = FULL.splitlines()[number].replace(value, str(2 * int(value)))
    assert of_text(tmp_path, "\n".join(lines)).text != whole


def test_each_snippet_alone(tmp_path):
    _, config = converted(tmp_path, MODEL)
    assert (config.task.type, config.model.kind) == ("transcribe", "encoder_decoder")
    assert (config.model.encoder.attention, config.model.decoder.attention) == ("linear", "causal_linear")
    assert (config.model.decoder.d_ff, config.model.decoder.dropout, config.losses) == (4, 0.1, None)
    assert (config.data.train[0].type, str(config.data.train[0].path)) == ("jsonl", "train.jsonl")

    _, config = converted(tmp_path, DATASET)
    assert (config.task.type, config.model.kind, config.data.train[0].name) == ("diarize", "encoder", "ami")

    _, config = converted(tmp_path, "logging:\n  tensorboard: true\n  interval: 10\n")
    assert (config.train.log_every, config.callbacks[0].tensorboard) == (10, True), "as the document shows it"

    result, config = converted(tmp_path, MINIMAL)
    assert config.train.keep is None, "all, as there"
    assert (config.name, config.train.epochs, config.train.clip) == ("given", 10, None)
    assert (config.optim.weight_decay, config.optim.betas) == (0, (0.9, 0.999)), "theirs where they are not given"
    assert (config.schedule.type, config.schedule.warmup_steps, config.schedule.min_ratio) == ("cosine", 0, 0.01)
    assert config.data.eval == {} and any("train.jsonl" in note for note in result.notes)


def test_a_recogniser(tmp_path):
    text = FULL.replace("    label_type: binary\n", "")
    result, config = converted(tmp_path, text)
    assert (config.task.type, config.model.kind) == ("transcribe", "encoder_decoder")
    assert {name: loss.type for name, loss in config.losses.items()} == {"text": "cross_entropy"}
    assert config.losses["text"].label_smoothing == 0.1 and config.data.train[0].utterances
    assert "training.loss.auxiliary.norm_reg: 0.1" in comments(result)


def test_a_language_model(tmp_path):
    model = MODEL.replace("encoder_decoder", "decoder").replace("  encoder:", "  encoder:\n    nb_features: 64")
    result, config = converted(tmp_path, model + DATASET + TRAINING)
    assert (config.task.type, config.model.kind, config.model.decoder.d_model) == ("language", "decoder", 512)
    remarks = comments(result)
    assert "global_config.num_mel_bins: 80" in remarks and "model.encoder.nb_features: 64" in remarks
    assert any("hears nothing" in note for note in result.notes) and config.data.train[0].name == "ami"


@pytest.mark.parametrize(
    ("labels", "main", "term", "kind"),
    [
        ("binary", "cross_entropy", "speech", "bce_with_logits"),
        ("binary", "label_smoothing", "speech", "bce_with_logits"),
        ("binary", "bce", "speech", "bce"),
        ("binary", "huber", "speech", "huber"),
        ("binary", "focal", "speech", "focal"),
        ("speaker_id", "cross_entropy", "speakers", "pit_bce"),
        ("speaker_id", "bce_with_logits", "speakers", "pit_bce"),
        ("speaker_id", "mse", "speakers", "mse"),
        ("custom", "nll", "speakers", "pit_bce"),
    ],
)
def test_losses_of_labels(tmp_path, labels, main, term, kind):
    text = FULL.replace("label_type: binary", f"label_type: {labels}").replace("main: cross_entropy", f"main: {main}")
    text = text.replace("    label_smoothing: 0.1\n", "    focal_gamma: 1.5\n    focal_alpha: 0.3\n")
    result, config = converted(tmp_path, text)
    assert config.task.labels.type == ("binary" if labels == "binary" else "speaker")
    assert config.losses[term].type == kind
    if kind == "focal":
        assert (config.losses[term].gamma, config.losses[term].alpha) == (1.5, 0.3)
    else:
        assert "training.loss.focal_gamma: 1.5" in comments(result)
    if main == "label_smoothing":
        assert config.losses[term].label_smoothing == 0.1
    assert any("plug-in" in note for note in result.notes) == (labels == "custom")


def test_contrastive_needs_embeddings(tmp_path):
    _, config = converted(tmp_path, FULL.replace("      norm_reg: 0.1", "      contrastive: 0.2"))
    assert (config.losses["contrastive"].type, config.losses["contrastive"].weight) == ("contrastive", 0.2)
    assert config.model.embedding is not None


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "adagrad", "rmsprop", "adamax"])
@pytest.mark.parametrize("shape", ["cosine", "cosine_restarts", "linear", "exponential", "step", "plateau", "constant"])
def test_optimizers_and_schedules(tmp_path, kind, shape):
    text = f"""\
training:
  epochs: 5
  batch_size: 4
  optimizer: {{type: {kind}, lr: 0.01, momentum: null, epsilon: 1e-6, amsgrad: true, nesterov: false}}
  scheduler: {{type: {shape}, min_lr: 0.001, num_cycles: 3, gamma: 0.5, patience: 2, mode: min, decay_steps: 900}}
"""
    result, config = converted(tmp_path, text)
    assert (config.optim.type, config.optim.eps, config.optim.amsgrad) == (kind, 1e-6, True)
    assert kind not in ("sgd", "rmsprop") or config.optim.momentum == 0, "torch's, where they give none"
    schedule = config.schedule
    assert (schedule.type, schedule.min_ratio, schedule.cycles) == (shape, 0.1, 3)
    assert (schedule.gamma, schedule.patience, schedule.warmup_steps) == (0.5, 2, 0)
    assert shape != "exponential" or schedule.step_size == 1, "gamma is the factor of each step"
    assert {"training.scheduler.decay_steps: 900", "training.scheduler.mode: min"} <= set(comments(result))


EVERYTHING = """\
model:
  model_type: encoder
  name: every
  global_config: {dropout: 0.2, d_ff: 2, device: cpu}
  encoder:
    {d_model: 64, num_layers: 2, num_heads: 4, attention_type: linear, nb_features: 32, activation: SWIGLU,
     positional: learnable, use_scalenorm: true, use_rezero: false, feature_redraw_interval: 1000,
     auto_check_redraw: true, num_classes: 5}
global_config:
  corpus_dir: /corpora
  force_download: true
  random_seed: 7
  features: {feature_type: mfcc, num_mel_bins: 23, sampling_rate: 8000, num_ceps: 20, use_fft_mag: true}
  storage_path: ./features
  data_loading:
    strategy: precomputed_features
    frame_stack: 15
    subsampling: 10
    chunk_size: 5
    context_size: 7
    sampler: {type: dynamic_bucketing, num_buckets: 10}
    dataloader: {num_workers: 3, prefetch_factor: 8, pin_memory: true}
datasets:
  - name: ami
    download_params: {mic: ihm, force_download: false}
    process_params: {mic: sdm, partition: full-corpus, annotations: null}
  - name: voxceleb1
    process_params: {corpus_dir: /elsewhere, output_dir: ./vox}
  - icsi
training:
  epochs: 5
  max_steps: 300
  batch_size: 16
  optimizer: {type: sgd, lr: 0.1, momentum: 0.8, nesterov: true}
  mixed_precision: fp16
  amp_loss_scale: 1024
  fixed_projection: true
  feature_redraw_interval: 50
  training_dataset_map:
    combine: true
    splits:
      - {dataset_name: ami, split_name: train, subset_ratio: 0.5}
      - {dataset_name: icsi, split_name: train}
  validation:
    interval: 10
    batch_size: 4
    max_steps: 5
    validate_on_epoch: true
    validation_dataset_map: {splits: [{dataset_name: ami, split_name: dev}]}
  early_stopping: {patience: 3, metric: val_loss, restore_best_weights: false}
  checkpoint: {save_dir: ./c, interval: 2, interval_in_epochs: true, save_total_limit: 4, save_best_only: true,
               monitor_metric: val_loss, snapshot_features: true}
  distributed: {backend: nccl, world_size: 8, sync_gradient_barrier: true, find_unused_parameters: true}
  logging: {interval: 5, tensorboard: false, wandb: false, wandb_project: none, log_model: true}
  performance: {num_workers: 1, drop_last: true, compile_model: true}
  profiling: true
  callbacks: [lr_monitor, gradient_clipping]
  eval_knobs: {label_type: speaker_id, max_duration: 60, beam_width: 5}
  tuning: {library: optuna, search_space: {lr: [1e-5, 1e-4]}}
  safeguards: {max_loss: 1000000}
"""


UNUSED = """\
training.feature_redraw_interval: 50
model.encoder.feature_redraw_interval: 1000
model.encoder.num_classes: 5
global_config.features.use_fft_mag: true
training.epochs: 5
datasets.ami.download_params.mic: ihm
global_config.data_loading.context_size: 7
training.batch_size: 16
global_config.data_loading.dataloader.num_workers: 3
training.validation.interval: 10
training.checkpoint.interval: 2
training.checkpoint.save_total_limit: 4
training.amp_loss_scale: 1024
training.distributed.world_size: 8
training.logging.wandb_project: none
training.tuning.library: optuna
training.callbacks: [lr_monitor, gradient_clipping]
training.safeguards.max_loss: 1000000
training.eval_knobs.beam_width: 5
training.performance.drop_last: true
"""


def test_every_kind_of_key(tmp_path):
    result, config = converted(tmp_path, EVERYTHING)
    encoder = config.model.encoder
    assert (encoder.attention_features, encoder.activation) == (32, "swiglu")
    assert (encoder.positions, encoder.norm) == ("learned", "scalenorm")
    assert (encoder.d_ff, encoder.dropout, config.model.fixed_projection) == (2, 0.2, True)
    features = config.model.features
    assert (features.type, features.num_mel_bins, features.sampling_rate, features.num_ceps) == ("mfcc", 23, 8000, 20)
    assert (features.stack, features.subsample, features.store, config.task.chunk) == (15, 10, "./features", 5)
    ami, icsi = config.data.train
    assert (ami.name, ami.split, ami.repeat, icsi.name, icsi.repeat) == ("ami", "train", 0.5, "icsi", 1)
    assert ami.options == {"mic": "sdm", "partition": "full-corpus"}
    assert str(ami.from_) == "/corpora/ami" and ami.download and icsi.download
    assert list(config.data.eval) == ["ami-dev"] and config.data.eval["ami-dev"].limit == 20
    assert config.data.max_items is None and config.data.batch_tokens == 600, "60 s at 10 frames a second"
    assert (config.data.workers, config.data.prefetch) == (1, 8)
    train = config.train
    assert (train.steps, train.epochs, train.seed, train.precision) == (300, None, 7, "fp16")
    assert (train.eval_every, train.save_every, train.keep) == (None, None, 1)
    assert (train.compile, train.find_unused, train.best_metric) == (True, True, "ami-dev/loss")
    assert (config.optim.momentum, config.optim.nesterov, config.schedule.type) == (0.8, True, "constant")
    stop, profile = config.callbacks
    assert (stop.type, stop.restore_best, profile.type) == ("early_stop", False, "profile")
    assert not {*UNUSED.splitlines()} - {*comments(result)}


def test_corpora_with_another_name(tmp_path):
    text = EVERYTHING.replace("{dataset_name: icsi,", "{dataset_name: voxceleb1,")
    _, config = converted(tmp_path, text)
    _, vox = config.data.train
    assert (vox.name, str(vox.from_), str(vox.to)) == ("voxceleb", "/elsewhere", "vox")


def test_a_corpus_is_downloaded_where_theirs_would(tmp_path):
    """Theirs downloads what has no folder yet, and all where it is forced."""
    ami = f"{{name: ami, download_params: {{target_dir: {tmp_path}, timeout: 5}}}}"
    text = f"datasets: [{ami}, {{name: icsi}}, {{name: nsc}}]\n"
    result, config = converted(tmp_path, text)
    assert [source.download for source in config.data.train] == [False, True, False], "nsc cannot be"
    assert any("icsi is downloaded to ./data/icsi" in note for note in result.notes)
    _, config = converted(tmp_path, f"global_config: {{force_download: true}}\n{text}")
    assert config.data.train[0].download


def test_parts_of_a_corpus_are_its_splits(tmp_path):
    parts = "[train-clean-100, dev-clean, test-clean]"
    text = f"datasets: [{{name: librispeech, process_params: {{dataset_parts: {parts}, normalize_text: none}}}}]\n"
    result, config = converted(tmp_path, text)
    [train], data = config.data.train, config.data
    assert (train.split, train.options) == ("train-clean-100", {"normalize_text": "none"})
    assert [*data.eval] == ["dev-clean"] and [*data.test] == ["test-clean"]
    assert not any("no splits" in note for note in result.notes)
    assert f"datasets.librispeech.process_params.dataset_parts: {parts}" in comments(result)
    _, config = converted(tmp_path, text.replace(parts, "auto"))
    assert config.data.train[0].split == "train"


def test_corpora_without_a_recipe_are_read_as_published(tmp_path):
    text = """\
datasets:
  - {name: mswild, process_params: {splits: {train: few.train, dev: few.val, test: many.val}}}
  - {name: ava_avd, process_params: {splits: {val: val}}}
  - {name: ego4d, download_params: {dataset_parts: [clips, annotations]}, process_params: {max_clips: 0}}
  - {name: libriheavy_mix, process_params: {dataset_parts: [small, dev], speaker_counts: [2, 3]}}
training:
  training_dataset_map: {splits: [{dataset_name: mswild, split_name: train}]}
  validation: {validation_dataset_map: {splits: [{dataset_name: mswild, split_name: val},
    {dataset_name: ava_avd, split_name: val}, {dataset_name: ego4d, split_name: val}]}}
"""
    result, config = converted(tmp_path, text)
    sources = [*config.data.train, *config.data.eval.values()]
    splits = ["msdwild few_train", "msdwild few_val", "ava_avd val", "ego4d dev"]
    assert [f"{s.name} {s.split}" for s in sources] == splits
    assert not any(source.download or source.options for source in sources)
    for line in ("ego4d.process_params.max_clips: 0", "libriheavy_mix.process_params.speaker_counts: [2, 3]"):
        assert f"datasets.{line}" in comments(result)
    result, config = converted(tmp_path, text[: text.index("training:")])
    assert [s.split for s in config.data.train] == ["small_2spk", "small_3spk", "few_train", "train", "train"]
    assert [*config.data.eval] == ["libriheavy_mix-dev_2spk", "libriheavy_mix-dev_3spk"]


def test_names_without_a_recipe_are_manifests_made_before(tmp_path):
    """Their simulated mixtures; options that a recipe does not know are left out, as there."""
    text = """\
global_config: {output_dir: ./m, process_params: {mic: sdm}}
datasets: [{name: simu_2spk}, {name: ami, process_params: {num_phones: 48}}]
training: {training_dataset_map: {splits: [{dataset_name: simu_2spk, split_name: train_b2}]}}
"""
    result, config = converted(tmp_path, text)
    [train], evaluated = config.data.train, config.data.eval
    assert (train.type, str(train.path)) == ("manifest", "m/simu_2spk/simu_2spk_cuts_train_b2.jsonl.gz")
    assert any("lhotse cut simple -r ./m/simu_2spk/simu_2spk_recordings_SPLIT" in note for note in result.notes)
    assert evaluated["ami-dev"].options == {"mic": "sdm"}
    assert "datasets.ami.process_params.num_phones: 48" in comments(result)


@pytest.mark.parametrize(
    ("labels", "theirs", "ours"),
    [("speaker_id", "val_loss", "loss"), ("ego", "val_accuracy", "accuracy"), ("binary", "val_f1", "macro_f1")],
)
def test_metrics_to_steer_by_are_of_the_first_evaluation_set(tmp_path, labels, theirs, ours):
    text = f"""\
training:
  early_stopping: {{metric: {theirs}, patience: 4, mode: {"min" if ours == "loss" else "max"}}}
  validation: {{splits: [dev, test], metric_for_best_model: {theirs}, greater_is_better: {ours != "loss"}}}
  eval_knobs: {{label_type: {labels}}}
datasets: [ami]
"""
    result, config = converted(tmp_path, text)
    assert (config.callbacks[0].metric, config.callbacks[0].mode) == (f"dev/{ours}", None)
    assert config.train.best_metric == f"dev/{ours}" in logged(config)
    assert f"training.early_stopping.metric: {theirs}" in comments(result), "theirs is the mean over the sets"


def logged(config) -> set[str]:
    """All that evaluation gives of the set dev."""
    from stentor.engine.steering import logged_metrics

    return {f"dev/{metric}" for metric in logged_metrics(config.task, config.losses or config.task.losses())}


def test_a_checkpoint_to_resume_from_is_one_of_stentor(tmp_path):
    resume = "training: {checkpoint: {resume: %s, resume_restore_scheduler: true}}\n"
    result, _ = converted(tmp_path, resume % "runs/a/checkpoints/step-000400")
    command = "stentor train given.yaml --resume-from runs/a/checkpoints/step-000400"
    assert any(command in note for note in result.notes) and command in result.text
    [message] = mistakes(tmp_path, resume % "./outputs/checkpoint_19")
    assert "'training.checkpoint.resume' must be a checkpoint of a Stentor run" in message


def test_redrawn_once_for_all_layers(tmp_path):
    text = EVERYTHING.replace("fixed_projection: true", "fixed_projection: false")
    result, config = converted(tmp_path, text)
    assert [c.every for c in config.callbacks if c.type == "redraw"] == [50]
    assert "model.encoder.feature_redraw_interval: 1000" in comments(result)
    softmax = text.replace("attention_type: linear", "attention_type: softmax")
    result, config = converted(tmp_path, softmax)
    assert not [c for c in config.callbacks if c.type == "redraw"]
    assert "model.encoder.nb_features: 32" in comments(result)


EXPERIMENT = """\
model:
  model_type: encoder_decoder
  name: target_speaker
  global_config: {dropout: 0.1, batch_size: 128, d_ff: 4, device: cuda}
  encoder: {input_dim: 345, d_model: 45, num_layers: 1, num_heads: 5, attention_type: linear, nb_features: 16,
            activation: REGLU, use_rezero: true, use_scalenorm: true,
            positional_encoding: {type: rope, max_seq_len: 512, theta: 10000.0}}
  decoder: {input_dim: 345, d_model: 45, num_layers: 1, num_heads: 5, attention_type: causal_linear,
            use_cross_attention: true, num_classes: 5, positional_encoding: {type: rope, max_seq_len: 512}}
training:
  epochs: 20
  batch_size: 4
  max_steps: null
  training_dataset_map: {combine: true, splits: [{dataset_name: ami, split_name: train, subset_ratio: 1.0}]}
  optimizer: {type: adamw, lr: 1e-5, weight_decay: 0.1, betas: [0.9, 0.95], epsilon: 1e-8}
  scheduler: {type: constant, warmup_steps: 0}
  loss: {main: cross_entropy, reduction: mean, label_smoothing: 0.1}
  validation: {interval: 1, validate_on_epoch: true, batch_size: 8,
               validation_dataset_map: {combine: false, splits: [{dataset_name: ami, split_name: val}]}}
  checkpoint: {resume_restore_optimizer: false, save_dir: ./c, resume: ./c/checkpoints/step-000019}
  safeguards: {skip_high_loss: true, max_loss: 1e6, skip_non_finite_losses: false}
  callbacks: [gradient_clipping]
  eval_knobs: {batch_size: 8, label_type: ego, max_duration: null}
global_config:
  cache_dir: ./cache
  combine_training_sets: true
  sampling_rate: 8000
  features: {feature_type: fbank, sampling_rate: 8000, num_mel_bins: 23, low_freq: 0.0, high_freq: 4000.0,
             window_type: hanning, vtln_low: 100.0, vtln_high: -500.0, debug_mel: False, htk_mode: False,
             use_log_fbank: True, use_power: True, htk_compat: False, num_workers: 4, blackman_coeff: 0.42,
             device: cuda, overwrite: false, batch_duration: 21000.0, dataloader: {num_workers: 4}}
  data_loading: {strategy: precomputed_features, subsampling: 10, chunk_size: 5.0, dataloader: {num_workers: 0}}
datasets:
  - name: ami
    process_params: {mic: ihm-mix}
"""
"""Every key that the experiments of ed-00/TS-DIA have beside those of its document, with their values."""


def test_an_experiment_as_it_is_written_there(tmp_path, here, meetings):
    result, config = converted(tmp_path, EXPERIMENT)
    encoder, features = config.model.encoder, config.model.features
    assert (config.task.labels.type, encoder.positions, encoder.norm) == ("ego", "none", "rezero")
    assert (features.stack, features.subsample, features.normalize) == (15, 10, "mean")
    assert (config.losses["speakers"].type, config.losses["speakers"].label_smoothing) == ("ego", 0.1)
    assert config.data.eval["val"].split == "dev", "as lhotse's recipe names it"
    remarks = comments(result)
    for part in ("model.encoder.input_dim: 345", "model.encoder.use_scalenorm: true", "global_config.cache_dir: "):
        assert any(line.startswith(part) for line in remarks), part
    for key in ("vtln_low", "htk_compat", "overwrite", "batch_duration", "dataloader.num_workers"):
        assert any(line.startswith(f"global_config.features.{key}: ") for line in remarks), key
    assert "model.encoder.positional_encoding.type: rope" in remarks
    assert config.model.init == "./c/checkpoints/step-000019/export", "the weights alone"
    assert config.task.shift == 2.5, "their windows overlap by half"

    train, dev = (f"{{type: jsonl, path: {meetings / part}.jsonl}}" for part in ("train", "dev"))
    steps = ("train.epochs=null", "train.steps=2", f"output={tmp_path / 'runs'}", "callbacks=[]", "model.init=null")
    here("train", tmp_path / "ours.yaml", f"data.train=[{train}]", f"data.eval.val={dev}", *steps)
    assert (tmp_path / "runs" / "target_speaker" / "export" / "model.safetensors").exists()


def test_what_cannot_be_is_refused_and_hints_are_near(tmp_path):
    text = EXPERIMENT.replace("use_power: True", "use_power: False").replace("cache_dir:", "data_folder:")
    folder, power = mistakes(tmp_path, text)
    assert "'global_config.features.use_power' must be true" in power
    assert "unknown key 'global_config.data_folder': it has no counterpart" in folder


def test_a_file_that_only_prepares_data(tmp_path):
    result, config = converted(tmp_path, EXPERIMENT.replace("epochs: 20", "epochs: 0"))
    assert config.train.epochs != 0 and "training.epochs: 0" in comments(result)


def test_all_mistakes_are_reported_at_once(tmp_path):
    text = FULL.replace("epochs: 50", "epoch: 50").replace("lr: 2e-4", "lr: fast").replace("heads: 8", "heads: x")
    text = text.replace("model_type: encoder_decoder", "model_type: rnn").replace("- name: ami", "- {name: 3, nam: 1}")
    text = text.replace("tensorboard: true", "tensorboard: 1").replace("batch_size: 64", "batch_size: -1")
    keys = ("training.epoch", "optimizer.lr", "heads", "model_type", "nam", "tensorboard", "batch_size")
    found = "\n".join(mistakes(tmp_path, text))
    assert not [key for key in (*(f"{key}'" for key in keys), "optim.lr") if key not in found], found


def test_unknown_keys_are_named_with_their_lines(tmp_path):
    text = FULL.replace("dither: 0.0", "diter: 0.0").replace("num_heads: 8", "num_head: 8", 1)
    text = text.replace("  - name: ami", "  - name: ami\n    process_parms: {mic: ihm}")
    lines = text.splitlines()
    at = {key: 1 + next(i for i, line in enumerate(lines) if key in line) for key in ("diter", "num_head:", "parms")}
    assert mistakes(tmp_path, text) == [
        f"given.yaml:{at['num_head:']}: unknown key 'model.encoder.num_head' (did you mean "
        "'model.encoder.num_heads'?): it has no counterpart",
        f"given.yaml:{at['diter']}: unknown key 'global_config.diter' (did you mean 'global_config.dither'?): it has "
        "no counterpart",
        f"given.yaml:{at['parms']}: unknown key 'datasets.ami.process_parms.mic' (did you mean 'process_params'?): it "
        "has no counterpart",
    ]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("type: adamw", "type: adadelta", "'optim.type'|optim.type"),
        ("model_type: encoder_decoder", "model_type: perceiver", "must be encoder or encoder_decoder or decoder"),
        ("label_type: binary", "label_type: emotion", "must be binary or speaker_id"),
        ("lr: 2e-4", "lr: fast", "must be a number"),
        ("tensorboard: true", "tensorboard: often", "must be true or false"),
        ("num_heads: 8", "num_heads: 7", "multiple of heads"),
        ("  - name: ami", "  - label: ami", "needs a `name`"),
        ("    interval: 500", "    interval: often", "eval_every"),
        ("    metric: val_loss", "    metric: val_recall", "must be val_loss, or for binary and ego labels"),
        ("    mode: min", "    mode: max", "the direction of val_loss is min"),
    ],
)
def test_values_that_cannot_be_are_told_at_their_line(tmp_path, before, after, message):
    text = FULL.replace(before, after, 1)
    line = 1 + next(i for i, line in enumerate(text.splitlines()) if after.strip() in line)
    messages = mistakes(tmp_path, text)
    assert any(m.startswith(f"given.yaml:{line}: ") and re.search(message, m) for m in messages), messages


def test_splits_must_be_of_the_datasets(tmp_path):
    text = EVERYTHING.replace("{dataset_name: icsi, split_name: train}", "{dataset_name: dihard, split_name: train}")
    [message] = mistakes(tmp_path, text)
    assert "'dihard' is not one of the datasets: ami, voxceleb1, icsi" in message


def test_the_command(tmp_path, capsys):
    (tmp_path / "a.yml").write_text(FULL)
    assert main(["config", "convert", "universal", str(tmp_path / "a.yml")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# Converted from a.yml of the universal pipeline") and "type: diarize" in out
    assert "label_type" in err
    (tmp_path / "b.yml").write_text(MINIMAL)
    to = tmp_path / "runs.d"
    files = [str(tmp_path / file) for file in ("a.yml", "b.yml")]
    assert main(["config", "convert", "universal", *files, "--to", str(to)]) == 0
    assert sorted(p.name for p in to.iterdir()) == ["b.yaml", "performer_translator.yaml"]
    for file in to.iterdir():
        assert main(["config", "check", str(file)]) == 0
    (tmp_path / "c.yml").write_text(FULL.replace("epochs", "epoch"))
    assert main(["config", "convert", "universal", str(tmp_path / "c.yml")]) == 2
    assert re.search(r"c\.yml:\d+: unknown key 'training\.epoch'", capsys.readouterr().err)
