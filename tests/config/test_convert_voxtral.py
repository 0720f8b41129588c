"""Command lines of the Voxtral fine-tuning scripts become run files; nothing is lost on the way."""

import dataclasses

import pytest
from transformers import TrainingArguments

from stentor.cli import main
from stentor.config.convert.voxtral import OPTIONS, convert
from stentor.config.document import Mistakes
from stentor.config.load import load
from stentor.errors import ConfigError

SCRIPT = """\
#!/bin/bash
export HF_TOKEN=hf_abcdefgh12345678
RUN="outputs/our voices"
mkdir -p "$RUN"
# two epochs are enough
CUDA_VISIBLE_DEVICES=0 python scripts/train_lora.py \\
  --dataset-jsonl data/voices.jsonl --train-count 400 --eval-count 40 \\
  --train_batch_size 4 --eval-batch-size 8 --grad-accum=2 \\
  --learning-rate 1e-4 --epochs 2.5 --logging-steps 5 --save-steps 25 \\
  --lora-r 16 --lora-alpha 64 --lora-dropout 0.1 --freeze-audio-tower \\
  --trackio-space me/curves --output-dir "$RUN" 2>&1 | tee "$RUN/log.txt"
"""
GOLDEN = """\
# Converted from a command line of train_lora.py by `stentor config convert voxtral`.
name: our voices
output: outputs
task: transcribe
model:
  type: audio_llm
  from: mistralai/Voxtral-Mini-3B-2507
  lora:
    rank: 16
    alpha: 64
    dropout: 0.1
    targets:
      - "language_model.*.q_proj"
      - "language_model.*.k_proj"
      - "language_model.*.v_proj"
      - "language_model.*.o_proj"
  dtype: bfloat16
  freeze: ["audio_tower.*"]
data:
  train:
    - type: jsonl
      path: data/voices.jsonl
      audio_folder: "."
      limit: 400
  eval:
    dev:
      type: jsonl
      path: data/voices.jsonl
      audio_folder: "."
      skip: 400
      limit: 40
  max_items: 4
  batch_tokens: 4088
  max_seconds: 60.0
  workers: 1
optim:
  type: adamw
  lr: 0.0001
  weight_decay: 0.0
  betas: [0.9, 0.999]
schedule:
  type: linear
  warmup_steps: 0
train:
  accumulate: 2
  epochs: 2.5
  log_every: 5
  precision: auto
  eval_every: 25
  save_every: 25
callbacks:
  - type: tracking
    trackio:
      project: voxtral-lora-finetuning
      space_id: me/curves
"""


def converted(tmp_path, script):
    """What `convert` answers, and the run file as it loads."""
    result = convert(script)
    (tmp_path / "ours.yaml").write_text(result.text)
    return result, load(tmp_path / "ours.yaml").config


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return path


def test_a_script_becomes_this_run_file(tmp_path, script):
    result, config = converted(tmp_path, script)
    run_file = "".join(line for line in result.text.splitlines(True)[1:] if not line.startswith("#"))
    assert result.text.splitlines(True)[0] + run_file == GOLDEN
    assert result.name == "our voices" and config.model.lora.rank == 16


def test_what_the_scripts_do_wrong_is_said(script):
    result = convert(script)
    remarks = " ".join(line.lstrip("# ") for line in result.text.splitlines() if line.startswith("#"))
    for fact in ("language is English", "after 256 tokens", "end token", "leaves the adapters in the tower trained"):
        assert fact in remarks
    assert "--eval-batch-size: 8" in remarks
    assert any("end token" in note for note in result.notes)
    assert any("data/voices.jsonl start from the working directory" in note for note in result.notes)
    full = convert("python train.py").text
    for fact in ("bfloat16 (bf16)", "keep every checkpoint", "last weights", "adamw8bit", "train.shard", "or LoRA"):
        assert fact in full


def test_the_scripts_defaults_hold(tmp_path):
    result, config = converted(tmp_path, "python scripts/train.py")
    assert config.model.source == "mistralai/Voxtral-Mini-3B-2507"
    assert config.model.lora is None and config.model.freeze == []
    assert (config.optim.lr, config.train.epochs, config.train.accumulate) == (5e-5, 3, 4)
    assert (config.train.save_every, config.train.eval_every, config.train.log_every) == (50, 50, 10)
    assert (config.name, config.output, config.data.max_items) == ("voxtral-finetuned", ".", 2)
    [train], dev = config.data.train, config.data.eval["dev"]
    for source in (train, dev):
        assert (source.type, source.name) == ("hub", "hf-audio/esb-datasets-test-only-sorted")
        assert (source.config, source.split) == ("voxpopuli", "test")
    assert (train.skip, train.limit, dev.skip, dev.limit) == (0, 100, 100, 50)
    assert any("test split" in note for note in result.notes)


def test_lora_is_a_script_or_an_option(tmp_path):
    for command in ("python train_lora.py", "python train.py --use-lora", "python train.py --use_lora True"):
        model = converted(tmp_path, command)[1].model
        assert (model.lora.rank, model.lora.alpha, model.lora.dropout, model.freeze) == (8, 32, 0.0, [])
        assert "audio_tower.*.q_proj" in model.lora.targets and "language_model.*.o_proj" in model.lora.targets
    for command in ("python train.py --lora-r 4", "python train.py --use-lora=false --lora-r 4"):
        result, config = converted(tmp_path, command)
        assert config.model.lora is None and "#   --lora-r: 4\n" in result.text


def test_spellings(tmp_path):
    command = (
        "accelerate launch --num_processes 2 scripts\\\\train.py --per_device_train_batch_size 3 --num-train-epochs 7 "
        "--gradient_accumulation_steps 5 --lr 3e-5 --MODEL_CHECKPOINT ./my/voxtral --dataset-name a/b "
        "--dataset_config de --eval-count 0 --freeze_audio_tower --max-steps 70 --gradient-checkpointing"
    )
    result, config = converted(tmp_path, command)
    assert (config.data.max_items, config.train.steps, config.train.epochs) == (3, 70, None)
    assert (config.train.accumulate, config.optim.lr, config.model.gradient_checkpointing) == (5, 3e-5, True)
    assert (config.model.source, config.model.freeze) == ("./my/voxtral", ["audio_tower.*"])
    assert (config.data.train[0].name, config.data.train[0].config, config.data.eval) == ("a/b", "de", {})
    assert not any("not understood" in note for note in result.notes)


def test_what_is_not_understood_is_listed_without_secrets(tmp_path):
    script = SCRIPT.replace("--lora-r 16", "--lora-target q v --hf-token $HF_TOKEN --sav-steps=3 --login $HF_TOKEN")
    path = tmp_path / "run.sh"
    path.write_text(script)
    result, config = converted(tmp_path, path)
    assert config.model.lora.rank == 8
    listed = result.text.partition("# Not understood, so not in this file:\n")[2].splitlines()
    unknown = ("--lora-target q v", "--hf-token (not shown)", "--sav-steps 3", "--login (not shown)")
    assert listed == [f"#   {option}" for option in unknown]
    assert "not understood: --sav-steps (did you mean 'save-steps'?)" in result.notes
    assert "hf_abcdefgh12345678" not in result.text + " ".join(result.notes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2.5", "ten", r"run\.sh:9: 'train\.epochs' must be a number above 0 or null, not 'ten'"),
        ("_size 4", "_size many", r"run\.sh:8: 'batch-size' must be a number above 0"),
        ("--epochs 2.5", "--epochs", r"run\.sh:9: --epochs has no value"),
        ("--epochs 2.5", "--epochs $N", r"run\.sh:9: --epochs takes its value from \$N, which is not set there"),
        ('voices"', "voices", r"run\.sh:3: a quotation mark has no counterpart"),
    ],
)
def test_wrong_values_are_named_at_their_line(script, old, new, message):
    script.write_text(SCRIPT.replace(old, new, 1))
    with pytest.raises(Mistakes, match=message):
        convert(script)


def test_variables_with_defaults(tmp_path, script):
    script.write_text(SCRIPT.replace("--epochs 2.5", "--epochs ${EPOCHS:-6}"))
    assert converted(tmp_path, script)[1].train.epochs == 6
    _, config = converted(tmp_path, "N=7; OUT='a;b' && python train.py --epochs $N --output-dir $OUT")
    assert (config.train.epochs, config.name) == (7, "a;b")


def test_there_must_be_one_command(script):
    script.write_text("python app.py\n")
    with pytest.raises(ConfigError, match=r"no command with train\.py, train_lora\.py, push_to_huggingface\.py"):
        convert(script)
    script.write_text("python train.py\npython train_lora.py\n")
    with pytest.raises(Mistakes, match=r"run\.sh:2: another training command"):
        convert(script)


def test_command(tmp_path, script, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["config", "convert", "voxtral", "run.sh"]) == 0
    printed = capsys.readouterr()
    assert printed.out == convert(script).text
    assert printed.err.startswith("run.sh: transcripts are learnt with their end token")
    command = "python train.py --use-lora --output-dir out/mine"
    assert main(["config", "convert", "voxtral", "run.sh", command, "--to", "made"]) == 0
    assert "the command line -> made/mine.yaml" in capsys.readouterr().out
    for name in ("our voices", "mine"):
        assert main(["config", "check", f"made/{name}.yaml"]) == 0
    assert main(["config", "convert", "voxtral", "missing.sh"]) == 2
    assert "missing.sh does not exist" in capsys.readouterr().err


TRAINER = """\
accelerate launch --num_processes 2 --mixed_precision bf16 scripts/train.py --bf16 --lr-scheduler-type cosine
  --warmup_ratio=0.1 --report-to wandb tensorboard mlflow --eval_steps 20 --save_steps=40 --save-total-limit 3
  --load-best-model-at-end True --metric-for-best-model eval_wer --greater-is-better False
  --early-stopping-patience 3 --early-stopping-threshold 0.001 --optim adamw_bnb_8bit --max_grad_norm 0.5
  --adam_beta2 0.95 --label_smoothing_factor 0.1 --neftune_noise_alpha 5 --no-dataloader-pin-memory --max_steps -1
  --hub_token hf_abcdefgh12345678 --deepspeed ds.json --torch_compile --fp16 false --seed 7 --output-dir out/vox
""".replace("\n", " ")


def test_options_of_the_trainer(tmp_path):
    result, config = converted(tmp_path, TRAINER)
    train, (stop, tracking) = config.train, config.callbacks
    assert (train.precision, train.eval_every, train.save_every, train.keep) == ("bf16", 20, 40, 3)
    assert (train.use, train.clip, train.compile, train.shard, train.seed) == ("best", 0.5, True, True, 7)
    assert (train.steps, train.epochs) == (None, 3)
    assert (config.optim.type, config.optim.betas) == ("adamw8bit", (0.9, 0.95))
    assert (config.schedule.type, config.schedule.warmup_ratio) == ("cosine", 0.1)
    assert (stop.metric, stop.patience, stop.min_delta) == ("dev/wer", 3, 0.001)
    assert (tracking.tensorboard, tracking.wandb.project, tracking.trackio) == (True, "voxtral-finetuning", None)
    assert config.losses["text"].label_smoothing == 0.1
    assert result.commands == ("stentor train RUN.yaml --processes 2",)
    assert "#   --dataloader-pin-memory: false\n" in result.text and "#   --mixed_precision: bf16\n" in result.text
    assert 'hub-token: "(not shown)"' in result.text and "not understood" not in str(result.notes)
    for told in ("--neftune-noise-alpha: embeddings", "--report-to mlflow", "`train.shard` (FSDP2)"):
        assert any(told in note for note in result.notes)


def test_every_argument_of_the_trainer_is_known(tmp_path):
    """Each is a key of the run file, or a comment with the reason."""
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    fields |= {"evaluation_strategy", "no_cuda", "group_by_length", "warmup_ratio", "save_safetensors"}  # before 5
    assert len(fields) > 100
    for name in sorted(fields):
        spelt = OPTIONS.same.get(name.replace("_", "-"), name.replace("_", "-"))
        assert spelt in OPTIONS.known, name
        alone = spelt in OPTIONS.switches | OPTIONS.optional
        result = convert(f"python train.py --{name} {VALUES.get(name, '' if alone else '1')}")
        assert "Not understood" not in result.text and "Without an effect" not in result.text, name


VALUES = {
    "lr_scheduler_type": "cosine",
    "optim": "sgd",
    "label_smoothing_factor": "0.1",
    "adam_beta1": "0.8",
    "adam_beta2": "0.8",
    "warmup_ratio": "0.1",
    "project": "p --report-to wandb",
    "trackio_space_id": "a/b",
    "metric_for_best_model": "loss",
    "hub_model_id": "a/b --push-to-hub",
    "hub_private_repo": "--push-to-hub",
} | dict.fromkeys(("save_strategy", "eval_strategy", "evaluation_strategy"), "epoch")


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ("--warmup-steps 0.05", "schedule.warmup_ratio", 0.05),
        ("--warmup-steps 50 --warmup-ratio 0.1", "schedule.warmup_steps", 50),
        ("--lr-scheduler-type constant --warmup-steps 50", "schedule.warmup_steps", 0),
        ("--lr-scheduler-type reduce_lr_on_plateau", "schedule.patience", 10),
        ("--optim sgd", "optim.momentum", 0.0),
        ("--max-grad-norm 0", "train.clip", None),
        ("--fp16", "train.precision", "fp16"),
        ("--no-bf16", "train.precision", "fp32"),
        ("--load-best-model-at-end no", "train.use", "last"),
        ("--eval-strategy epoch", "train.eval_every", None),
        ("--eval-strategy no", "data.eval", {}),
        ("--save-strategy best", "train.save_every", None),
        ("--report-to none", "callbacks", []),
        ("--report-to all", "callbacks.0.trackio.project", "voxtral-finetuning"),
        ("--use_cpu", "train.device", "cpu"),
    ],
)
def test_what_an_option_becomes(tmp_path, options, key, value):
    found = converted(tmp_path, f"python train.py {options}")[1].plain()
    for part in key.split("."):
        found = found[int(part) if part.isdigit() else part]
    assert found == value


def test_several_mistakes_are_told_at_once():
    options = "--optim adafactor --lr-scheduler-type polynomial --epochs --learning-rate fast --bf16=maybe"
    with pytest.raises(Mistakes) as error:
        convert(f"python train.py {options}")
    keys = ("'optim' must be", "'lr-scheduler-type' must be", "--epochs has no value", "'optim.lr' must be")
    for key in (*keys, "'bf16' must be true or false"):
        assert key in str(error.value)


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2", "CUDA_VISIBLE_DEVICES=0,1 {} --processes 2"),
        ("python -m torch.distributed.run --nproc-per-node gpu", "{} --processes N"),
        ("deepspeed --num_gpus 4", "{} --processes 4"),
        ("accelerate launch --num_processes=1", "{}"),
    ],
)
def test_launchers_become_processes(launcher, command):
    result = convert(f"{launcher} train.py")
    assert result.commands == (command.format("stentor train RUN.yaml"),)
    assert ("number as `--processes N`" in str(result.notes)) == ("N" in command.replace("CUDA_VISIBLE_DEVICES", ""))


def test_where_training_resumes():
    def resume(value):
        result = convert(f"python -m scripts.train --resume_from_checkpoint {value}")
        return result.commands[0].partition("RUN.yaml")[2], str(result.notes)

    assert resume("runs/a/checkpoints/step-000040")[0] == " --resume-from runs/a/checkpoints/step-000040"
    command, notes = resume("outputs/checkpoint-500")
    assert command == "" and "outputs/checkpoint-500 is a checkpoint of transformers' Trainer" in notes
    assert "the same command again resumes" in resume("True")[1]


PUBLISH = """\
HF_USERNAME=anna
python train_lora.py --dataset-jsonl voices.jsonl --push-dataset --dataset-repo anna/voices --output-dir out/vox && \
  python generate_model_card.py --repo-name anna/vox --batch-size 2
python push_to_huggingface.py model out/vox my-vox --author-name "Anna B" --private --token $HF_TOKEN
python push_to_huggingface.py dataset voices.jsonl $HF_USERNAME/data --test
python deploy_demo_space.py --hf-token $HF_TOKEN --hf-username $HF_USERNAME --model-id anna/vox --brand-hf-org x; ls
python interface.py
"""


def test_scripts_that_publish_become_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.sh").write_text(PUBLISH)
    assert main(["config", "convert", "voxtral", "all.sh", "--to", "made"]) == 0
    err = capsys.readouterr().err
    assert [line.removeprefix("all.sh: next: ") for line in err.splitlines() if "next: " in line] == [
        "stentor train made/vox.yaml",
        "stentor publish dataset voices.jsonl,audio_folder=. --to anna/voices",
        "stentor publish model out/vox --to anna/vox --dry-run card",
        "stentor publish model out/vox --to USER/my-vox",
        "stentor publish dataset voices.jsonl,audio_folder=. --to anna/data --dry-run dataset-on-the-hub",
        "stentor publish demo anna/vox --to anna/vox-demo --secret HF_TOKEN",
        "stentor studio",
    ]
    for told in ("--author-name: the card has", "add --public", "--brand-hf-org: the page", "hf auth login"):
        assert told in err
    assert main(["config", "convert", "voxtral", "python push_to_huggingface.py model out/vox anna/v"]) == 0
    assert capsys.readouterr().out == "stentor publish model out/vox --to anna/v\n"


def test_files_of_options(tmp_path):
    text = '{"dataset_jsonl": "v.jsonl", "num_train_epochs": 2, "use_lora": true, "bf_16": 1}'
    (tmp_path / "args.json").write_text(text)
    text = "training: {lora_r: 4, learning_rate: 1e-4, report_to: [trackio], bf16: false}\n"
    (tmp_path / "args.yaml").write_text(text)
    result, config = converted(tmp_path, tmp_path / "args.json")
    assert (config.train.epochs, config.model.lora.rank, config.data.train[0].type) == (2, 8, "jsonl")
    assert "not understood: bf_16 (did you mean 'bf16'?)" in result.notes
    result, config = converted(tmp_path, tmp_path / "args.yaml")
    assert (config.model.lora.rank, config.optim.lr, config.train.precision) == (4, 1e-4, "fp32")
    assert config.callbacks[0].trackio.project == "voxtral-lora-finetuning"


SHELLS = {
    "a backslash on the last line": "python train.py --epochs 2 --save-steps 7 \\\n",
    "a backslash without a space": "python train.py --epochs 2\\\n  --save-steps 7\n",
    "spaces behind a backslash": "python train.py --epochs 2 \\  \n  --save-steps 7\n",
    "a subshell": "(cd voxtral && python train.py --epochs 2 --save-steps 7)\necho done\n",
    "its bracket apart": "( python train.py --epochs 2 --save-steps 7 )\n",
    "a substitution": "log=$(python train.py --epochs 2 --save-steps 7)\n",
    "quotes of other texts": "echo it's\npython train.py --epochs 2 --save-steps 7\ncat <<X\nthat's it\nX\n",
}


@pytest.mark.parametrize("what", SHELLS)
def test_what_shells_allow(tmp_path, what):
    (tmp_path / "run.sh").write_text(SHELLS[what])
    result, config = converted(tmp_path, tmp_path / "run.sh")
    assert (config.train.epochs, config.train.save_every) == (2, 7), result.text
    assert not [note for note in result.notes if "not understood" in note]


PYTHON = """\
CHECKPOINT = "mistralai/Voxtral-Mini-3B-2507"
parser.add_argument("-n", "--epochs", type=float, default=1.5)
args = parser.parse_args()
model = get_peft_model(VoxtralForConditionalGeneration.from_pretrained(CHECKPOINT), LoraConfig(
    r=4, lora_alpha=args.alpha, target_modules=["q_proj", "gate_proj"]))
data = load_dataset("someone/speech", "de", split="train")
train, dev = data.select(range(300)), data.select(range(300, 340))
args = TrainingArguments(
    output_dir="out/mine", learning_rate=3e-5, num_train_epochs=args.epochs, eval_steps=20 if dev else None,
    per_device_train_batch_size=6, bf16=True, torch_dtype_of=1,
)
"""


def test_a_python_script_has_its_settings_as_constants(tmp_path):
    (tmp_path / "train_lora.py").write_text(PYTHON)
    result, config = converted(tmp_path, tmp_path / "train_lora.py")
    assert (config.model.source, config.model.lora.rank) == ("mistralai/Voxtral-Mini-3B-2507", 4)
    assert config.model.lora.targets == [
        *("language_model.*.q_proj", "language_model.*.gate_proj", "audio_tower.*.q_proj")
    ]
    train, dev = config.data.train[0], config.data.eval["dev"]
    assert (train.name, train.config, train.split, train.limit) == ("someone/speech", "de", "train", 300)
    assert (dev.skip, dev.limit, config.data.max_items) == (300, 40, 6)
    assert (config.train.epochs, config.optim.lr, config.train.eval_every) == (1.5, 3e-5, 20)
    assert {"not understood: lora_alpha=args.alpha", "not understood: torch_dtype_of"} <= {*result.notes}
    assert "test split" not in str(result.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "print(1)\n": "has no settings to convert, such as TrainingArguments(...): give its command line.",
        "c = load('conf/a.yaml')\nTrainingArguments(learning_rate=c.lr, bf16=c.bf16)\n": "(conf/a.yaml).",
        "def x(:\n": "train.py:1: not Python: ",
    }.items(),
)
def test_a_python_script_without_settings(tmp_path, text, message):
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(ConfigError) as refused:
        convert(tmp_path / "train.py")
    assert message in str(refused.value)


MANIFESTS = """\
model: mistralai/Voxtral-Mini-3B-2507
lang: ms
data: {train_manifest: a/train.json, eval_manifest: a/dev.json}
lora: {r: 6, alpha: 12, dropout: 0.1, target_modules: [q_proj]}
tasks: {asr: {enabled: true}, s2tt: {enabled: true}}
trainer: {epochs: 2, lr: 1e-5, grad_accum: 3, train_batch_size: 5, load_in_4bit: true, resume_from_checkpoint: null}
exp_manager: {name: first, exp_dir: tries, logger: tensorboard, wandb: {project: p, run_id: null}}
"""
TABLES = """\
model: {pretrained: some/voxtral, seed: 3, lora: {r: 2}}
dataset: {name: mine, root_path: /clips, datafiles: {train: a.csv, eval: b.csv, test: c.csv}, normalize: true}
training: {per_device_train_batch_size: 2, num_train_epochs: 4, output_dir: ./runs/v0/}
inference: {language: de, num_beams: 2, output_dir: ./results}
augmentations: {p: 0.8}
"""


def test_files_of_settings_that_scripts_read(tmp_path, monkeypatch):
    for name, text in (("config/train_asr.yaml", MANIFESTS), ("mine.yaml", TABLES), ("src/train_asr.py", "import x\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    launch = tmp_path / "run.sh"
    launch.write_text("(accelerate launch --num_processes 2 src/train_asr.py)\n")
    texts = [converted(tmp_path, file)[0].text for file in (tmp_path / "config/train_asr.yaml", launch)]
    assert texts[1].replace("--processes 2", "").replace(" \n", "\n") == texts[0]
    result, config = converted(tmp_path, tmp_path / "src/train_asr.py")
    train, dev, lora = config.data.train[0], config.data.eval["dev"], config.model.lora
    assert (str(train.path), str(dev.path), train.language, train.limit) == ("a/train.json", "a/dev.json", "ms", None)
    assert (lora.rank, lora.alpha, lora.dropout, config.model.quantize) == (6, 12, 0.1, "4bit")
    assert (config.name, config.output, config.train.accumulate, config.data.max_items) == ("first", "tries", 3, 5)
    assert any("--tasks: a run learns transcripts alone" in note for note in result.notes)
    monkeypatch.chdir(tmp_path)
    result, config = converted(tmp_path, "python voxtral/main.py mine.yaml")
    assert [str(s.audio_folder) for s in (config.data.train[0], config.data.test["test"])] == ["/clips"] * 2
    assert (config.data.train[0].language, config.optim.type, config.model.lora.rank) == ("de", "adamw8bit", 2)
    assert (config.model.lora.alpha, config.train.seed, config.output, config.name) == (64, 3, "runs", "v0")
    assert config.data.train[0].columns == {"text": "text_norm"} and "--augmentations" in str(result.notes)
    with pytest.raises(ConfigError, match=r"settings in other\.yaml, which is not here: run this in the folder"):
        convert("python main.py other.yaml")
