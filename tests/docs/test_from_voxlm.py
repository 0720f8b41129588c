"""docs/from-voxlm.md leaves nothing of VoxLM's guide out, and names only what there is."""

import json
import re
import shlex
from pathlib import Path

import pytest

from conversion_page import columns, is_unknown, mistakes, text_of
from stentor.cli import build
from stentor.config.load import load, parse_source
from stentor.data.cut import UnusableRecord, words_of

ROOT = Path(__file__).parents[2]
PAGE = text_of("from-voxlm.md")
RECIPE = ROOT / "recipes" / "voxlm_2b.yaml"

OPTIONS = {
    "download_data.py": ["--output", "--splits"],
    "generate_timestamps.py": [
        "--data",
        "--split",
        "--output",
        "--model",
        "--fast",
        "--parallel N",
        "--max-wer 0.1",
        "--use-native",
    ],
    "train.py": [
        "--model",
        "--data",
        "--output",
        "--epochs",
        "--batch-size",
        "--lr",
        "--train-split",
        "--val-split",
        "--grad-accum",
        "--compile",
        "--num-workers",
        "--wandb",
    ],
    "train_with_timestamps.py": [
        "--model",
        "--checkpoint",
        "--timestamps",
        "--val-timestamps",
        "--output",
        "--epochs",
        "--batch-size",
        "--lr",
        "--alignment-weight",
    ],
    "inference.py": ["--checkpoint", "--audio", "--instruction"],
}
"""The flags of each script that VoxLM's guide shows, in its tables and commands."""
OTHERS = {
    "Settings": [
        "model.name",
        "model.audio_encoder",
        "model.llm_model",
        "model.use_lora",
        "model.lora_r",
        "training.phase1.epochs",
        "training.phase1.batch_size",
        "training.phase1.learning_rate",
        "training.phase2.epochs",
        "training.phase2.batch_size",
        "training.phase2.learning_rate",
        "data.data_dir",
        "data.train_split",
        "data.val_split",
    ],
    "Files": [
        "timestamps_manifest.json",
        "training.log",
        "latest.pt",
        "best.pt",
        "latest_phase2.pt",
        "best_phase2.pt",
        "model.pt",
        "config.yaml",
    ],
    "Troubleshooting": [
        "--batch-size 4",
        "--grad-accum 4",
        "--model voxlm-0.5b",
        "--compile",
        "--num-workers 8",
        "LibriSpeech",
        "--use-native",
        "--max-wer 0.2",
        "--model tiny",
        "best.pt",
    ],
}
"""What else it names: config keys, files, and what it advises in trouble."""
STEPS = ["Prerequisites", "Configuration", *(f"Step {i}" for i in range(1, 6)), "Test the model", "Next"]


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


LEFT, RIGHT = columns(PAGE, "VoxLM")


@pytest.mark.parametrize("script", OPTIONS)
def test_every_option_of_the_guide_has_a_row(script):
    [text] = [part for part in section("Options").split("\n### ") if f"`{script}`" in part.partition("\n")[0]]
    left, _ = columns(text, "VoxLM")
    assert not [name for name in OPTIONS[script] if name not in left]


@pytest.mark.parametrize("title", OTHERS)
def test_everything_else_of_the_guide_has_a_row(title):
    left, _ = columns(section(title), "VoxLM")
    assert not [name for name in OTHERS[title] if name not in left]


def test_every_row_has_an_answer():
    rows = [line.split(" | ", 1) for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(rows) > 80 and all(len(row) == 2 and row[1].strip("| ") for row in rows)


def test_all_steps_of_the_guide_are_there():
    rows = [line.removeprefix("| ") for line in section("Steps").splitlines() if line.startswith("| ")]
    assert [step for step in STEPS if any(row.startswith(step) for row in rows)] == STEPS


def test_every_setting_that_is_converted_is_told(tmp_path):
    from stentor.config.convert import voxlm
    from stentor.config.convert.draft import expanded

    (tmp_path / "empty.yaml").write_text("model: {name: voxlm-edge}")
    implied, *of_words = map(expanded, voxlm._UNSUPPORTED.values())
    known = voxlm.convert(tmp_path / "empty.yaml").known - {*implied}
    assert {*voxlm._PLAIN, *voxlm._STAGE_2, *(key for keys in of_words for key in keys)} < known
    dead = {
        "model.frame_rate",
        "model.sample_rate",
        "model.alignment_heads",
        "model.timestamp_loss_weight",
        "model.confidence_loss_weight",
    }
    later = {
        key for key in known if key.rpartition(".")[2] in ("weight_decay", "warmup_steps", "gradient_accumulation")
    }
    assert not sorted({*known} - {*LEFT} - dead - later)


def verb(words: list[str]):
    """The command that the words call, and what is left of them; None where they call none."""
    command = build()
    for i, word in enumerate(words):
        if not hasattr(command, "commands"):
            return command, words[i:]
        if word not in command.commands:
            return None, words
        command = command.commands[word]
    return (None if hasattr(command, "commands") else command), []


def test_every_command_and_option_that_is_named_exists():
    seen = 0
    for text in RIGHT:
        words = shlex.split(text)
        command, rest = verb(words)
        flags = [word for word in words if word.startswith("--")]
        if command is None:
            everything = {o for c in commands() for p in c.params for o in p.opts}
            assert set(flags) <= everything, text
            continue
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known, text
        seen += len(flags)
    assert seen > 15


def commands():
    pending = [build()]
    while pending:
        command = pending.pop()
        pending += getattr(command, "commands", {}).values()
        yield command


def keys() -> list[str]:
    """Keys and settings of ours: `optim.lr`, `train.compile=true data.workers=8`, `callbacks: [...]`."""
    overrides = []
    for text in RIGHT:
        if re.fullmatch(r"(name|output|callbacks|(model|data|optim|schedule|train|stages|losses)\.[\w.-]+)", text):
            overrides.append(f"{text}=null")
        elif "=" in text and not text.startswith(("type=", "--")):
            overrides += [text] if "[" in text else text.split()
        elif re.match(r"[\w.]+: ", text):
            overrides.append(text.replace(": ", "=", 1))
    return sorted(set(overrides))


def test_there_are_keys():
    assert len(keys()) > 40 and "stages.1.losses.alignment.weight=null" in keys()


@pytest.mark.parametrize("override", keys())
def test_every_key_that_is_named_exists(override):
    """Null may be a wrong value, but not of an unknown key; what is named with a value must be right."""
    message = mistakes(RECIPE, override)
    assert not message or override.endswith("=null"), message
    assert not is_unknown(message)


@pytest.mark.parametrize("wrong", ["optim.learning", "stages.1.losses.alignment.wieght", "model.llm.base"])
def test_a_key_that_does_not_exist_would_be_noticed(wrong):
    assert "unknown key" in mistakes(RECIPE, f"{wrong}=null")


def test_the_recipes_that_are_named_exist():
    named = re.findall(r"\bvoxlm_\w+", PAGE)
    assert set(named) == {path.stem for path in (ROOT / "recipes").glob("voxlm_*.yaml")}


def converted_2b(folder: Path):
    """The conversion of VoxLM's own 2B config, whose values are its defaults, and its file."""
    from stentor.config.convert.voxlm import convert

    (folder / "voxlm-2b.yaml").write_text("model: {name: voxlm-2b}\noutput: {checkpoint_dir: ./checkpoints}\n")
    converted = convert(folder / "voxlm-2b.yaml")
    (folder / "run.yaml").write_text(converted.text)
    return converted, folder / "run.yaml"


def test_the_commands_are_those_of_the_conversion(tmp_path):
    converted, _ = converted_2b(tmp_path)
    block, more, _ = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    assert f"stentor train runs.d/{converted.name}.yaml\n" in block and f"checkpoints/{converted.name} " in block
    assert "prepare run" in more and "stentor prepare" not in block


def test_the_overrides_for_a_lack_of_memory_are_those_of_the_message(tmp_path):
    from stentor.config.smaller_batches import halved

    _, run = converted_2b(tmp_path)
    assert f"`{' '.join(halved(load(run)))}`" in section("Troubleshooting")


def test_old_word_times_become_a_manifest(tmp_path, monkeypatch, corpus):
    """The Python of the page, on a file as VoxLM writes it."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    records = [json.loads(line) for line in (corpus / "dev.jsonl").read_text().splitlines()]
    old = tmp_path / "data" / "timestamps" / "dev-clean" / "timestamps_manifest.json"
    old.parent.mkdir(parents=True)
    old.write_text(
        json.dumps(
            [
                {
                    "id": r["id"],
                    "audio": str(corpus / r["audio_path"]),
                    "text": r["text"],
                    "text_whisper": r["text"],
                    "wer": 0.0,
                    "timestamps": r["words"],
                }
                for r in records
            ]
        )
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "from-voxlm.md", "exec"), {})
    cuts = list(parse_source("data/timestamps/dev-clean.jsonl").cuts())
    assert not any(isinstance(cut, UnusableRecord) for cut in cuts)
    assert [words_of(cut) for cut in cuts] == [r["words"] for r in records]
