"""VoxLM's guide from its first step to its last, on our commands: data, word times, both phases, export, transcript.

The corpus lies as LibriSpeech does and the models as the Hub has them; both are tiny. Whisper and the language model
are made to know one sentence, as pretrained models would, so that there is something to transcribe and to align.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from stentor.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "from-voxlm.md"
SENTENCE = "three blue boats sail"
OTHER = "GREEN WINTER"
VOICES = ("en-us", "en+f3", "en-us+m3", "en+f2")
CONFIG = """\
model:
  name: "voxlm-tiny"
  audio_encoder: "./models/whisper"
  llm_model: "./models/llm"
  use_lora: true
  lora_r: 4
  lora_alpha: 8
  lora_dropout: 0.0
  projection_dropout: 0.0
  alignment_num_layers: 1
  alignment_num_heads: 4
training:
  phase1: {epochs: 12, batch_size: 4, learning_rate: 1.0e-2, warmup_steps: 5}
  phase2: {epochs: 4, batch_size: 6, learning_rate: 2.0e-3, alignment_weight: 2.0}
  num_workers: 0
data:
  data_dir: "./data"
  train_split: "train-clean-100"
  val_split: "dev-clean"
  timestamps_dir: "./data/timestamps"
  whisper_model: "./models/whisper"
  max_wer: 0.1
output: {checkpoint_dir: "./checkpoints"}
device: {type: cpu}
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with data/LibriSpeech, models/ and VoxLM's config."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("voxlm")
    corpus(folder / "data" / "LibriSpeech")
    whisper(folder / "models" / "whisper")
    llm(folder / "models" / "llm")
    (folder / "voxlm-tiny.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder
    torch.set_num_threads(threads)


def corpus(root: Path) -> None:
    """Twelve training and two validation clips of the sentence; the transcript of one more says something else."""
    from stentor.audio.io import write
    from stentor.audio.synth import say

    for split, speakers, clips in (("train-clean-100", ("84", "174", "251"), 4), ("dev-clean", ("1272",), 2)):
        for speaker in speakers:
            chapter = root / split / speaker / "121123"
            chapter.mkdir(parents=True)
            lines = []
            for i in range(clips + (speaker == "251")):
                name = f"{speaker}-121123-{i:04d}"
                speech = say(SENTENCE, voice=VOICES[i % 4], speed=150 + 7 * i + int(speaker) % 10, pitch=40 + 5 * i)
                write(chapter / f"{name}.flac", speech.audio, 16000)
                lines.append(f"{name} {OTHER if i == clips else SENTENCE.upper()}\n")
            (chapter / f"{speaker}-121123.trans.txt").write_text("".join(lines))


def whisper(folder: Path) -> None:
    """A Whisper that writes the sentence, whatever it hears."""
    import torch
    from tiny_whisper import make_whisper

    model, tokenizer = make_whisper(f" {SENTENCE}", 290)
    tokenizer.save_pretrained(folder)
    ids = torch.tensor([[1, 2, *tokenizer.encode(f" {SENTENCE}"), 0]])
    encoded = torch.randn(1, 50, 32)
    memorise(model, lambda: model(encoder_outputs=(encoded,), decoder_input_ids=ids[:, :-1]).logits, ids[:, 1:])
    model.save_pretrained(folder)


def llm(folder: Path) -> None:
    """A Qwen2 that says the sentence after anything."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from stentor.models.text.tokenizers import bpe

    tokenizer = bpe([SENTENCE] * 9, 290)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            max_position_embeddings=1024,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    sentence = torch.tensor([[*tokenizer.encode(SENTENCE), tokenizer.eos_token_id]])
    before = torch.full((1, 1), tokenizer.encode("\n")[0])

    def logits():
        context = torch.randint(4, len(tokenizer), (1, 30))
        return model(torch.cat([context, before, sentence], 1)).logits[:, 30:-1]

    memorise(model, logits, sentence)
    model.save_pretrained(folder)


def memorise(model, logits, targets) -> None:
    """Fit the logits [1, N, V] to the targets [1, N]."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(logits()[0], targets[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.2


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_times(words: list[dict], seconds: float) -> None:
    times = [t for word in words for t in (word["start"], word["end"])]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= seconds


@pytest.mark.long
def test_the_guide_from_first_to_last_step(workplace, capsys):
    def stentor(*arguments: object) -> str:
        code = main(list(map(str, arguments)))
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out + captured.err

    # Configuration, then steps 1 and 2: the data are there, word times are made.
    stentor("config", "convert", "voxlm", "voxlm-tiny.yaml", "--to", "converted")
    run = Path("converted/voxlm-tiny.yaml")
    assert stentor("prepare", "run", run).count("\nprepared: ") == 4
    assert [len(lines(Path(f"data/manifests/{s}.jsonl"))) for s in ("train-clean-100", "dev-clean")] == [13, 2]
    timestamps = Path("data/timestamps")
    timed = {s: lines(timestamps / f"{s}.jsonl") for s in ("train-clean-100", "dev-clean")}
    assert [len(t) for t in timed.values()] == [12, 2]
    for record in [r for records in timed.values() for r in records]:
        assert [w["word"] for w in record["words"]] == SENTENCE.split() == record["text"].split()
        check_times(record["words"], record["duration"])
    summary = json.loads((timestamps / "train-clean-100.summary.json").read_text())
    assert (summary["kept"], summary["settings"]["max_wer"]) == (12, 0.1)
    [(_, dropped)] = summary["dropped"].items()
    assert dropped["count"] == 1 and dropped["first"][0].startswith("251-121123-0004")

    # Steps 3 and 4: both phases, from one command.
    plan = stentor("train", run, "--plan-only")
    assert plan.count("Parameters") == 2
    stentor("train", run)
    folder = Path("checkpoints/voxlm-tiny")
    phases = [folder / "stages" / "1", folder]
    results = [json.loads((phase / "results.json").read_text()) for phase in phases]
    assert [r["steps"] for r in results] == [12 * 4, 4 * 2]  # 13 clips in 4 batches, 12 in 2
    assert results[0]["data"]["used"] == 13 and results[1]["data"]["used"] == 12
    assert "word_time_mean_ms" not in results[0]["eval"]["dev-clean"]
    assert results[1]["eval"]["dev-clean"]["word_time_mean_ms"]["value"] < 100
    assert results[1]["eval"]["dev-clean"]["wer"]["value"] == 0
    for phase in phases:
        assert {"adapter_model.safetensors", "training_config.json"} <= {p.name for p in (phase / "export").iterdir()}
    promised = re.findall(r"`RUN/([^`]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(promised) > 10 and not [name for name in promised if not (folder / name).exists()]
    rows = [row for row in lines(folder / "metrics.jsonl") if "train/loss" in row]
    assert all("train/text" in row for row in rows) and {row["stage"] for row in rows} == {"1", "2"}
    assert all(("train/alignment" in row) == (row["stage"] == "2") for row in rows)
    assert "is finished" in stentor("train", run), "the same command again trains nothing anew"

    # Step 5: export, and the model's answer, from the run and from the export, which needs nothing else.
    model = Path("output/models/voxlm-tiny")
    stentor("export", folder, "--to", model, "--merge")
    audio = Path("data/LibriSpeech/dev-clean/1272/121123/1272-121123-0001.flac")
    asked = [audio, "--words", "--format", "json", "--device", "cpu"]
    first = json.loads(stentor("transcribe", folder, *asked))
    Path("models").rename("models-gone")
    stentor("transcribe", model, *asked, "--out", "answers")
    Path("models-gone").rename("models")
    answer = json.loads(Path("answers/1272-121123-0001.json").read_text())
    assert answer["audio"] == str(audio) and answer["text"] == first["text"] == SENTENCE
    assert [w["word"] for w in answer["words"]] == SENTENCE.split()
    for word, same in zip(answer["words"], first["words"], strict=True):
        assert set(word) == {"word", "start", "end", "confidence"} and 0 <= word["confidence"] <= 1
        assert word == pytest.approx(same, abs=0.002)
    check_times(answer["words"], answer["duration"])
    assert answer["duration"] == pytest.approx(timed["dev-clean"][1]["duration"], abs=0.01)
    assert answer["segments"][0]["text"] == SENTENCE


RECIPE = Path(__file__).parents[2] / "recipes" / "voxlm_05b.yaml"
SMALL = {
    "encoder": {"model_type": "whisper", "num_mel_bins": 80, "d_model": 32, "encoder_layers": 1, "encoder_ffn_dim": 64}
    | {"encoder_attention_heads": 2, "max_source_positions": 1500},
    "llm": {"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    | {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512},
}
SHORT = [
    *(f"model.{part}={json.dumps({'from': None, 'config': config})}" for part, config in SMALL.items()),
    *("model.tokenizer=characters", "prepare.2.model=models/whisper", "prepare.3.model=models/whisper"),
    *("data.workers=0", "train.device=cpu", "train.precision=fp32", "train.epochs=1", "stages.1.train.epochs=1"),
]


@pytest.mark.slow
def test_one_command(workplace, tmp_path, monkeypatch, capsys):
    """`stentor train recipes/voxlm_05b.yaml`, from a corpus on disk and nothing else to a checked export."""

    def stentor(*arguments: object) -> str:
        assert main([*map(str, arguments), *SHORT]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    shutil.copytree(workplace / "data" / "LibriSpeech", tmp_path / "data" / "LibriSpeech")
    shutil.copytree(workplace / "models", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    checked, planned = stentor("config", "check", RECIPE), stentor("train", RECIPE, "--plan-only")
    for text in (checked, planned):
        assert text.count("to be prepared: data/manifests (type=corpus, name=librispeech, from=data, split=") == 2
        assert text.count("to be prepared: data/timestamps/") == 2
    assert "stentor prepare run" in planned and not (tmp_path / "data" / "timestamps").exists()
    assert main(["train", str(RECIPE), *SHORT, "--plan-only", "--json", "plan.json"]) == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", str(RECIPE), *SHORT]) == 2 and "prepare run" in capsys.readouterr().err
    monkeypatch.delenv("WORLD_SIZE")

    # Steps that are done stay so; one whose outcome is gone is done again, in its turn.
    done = stentor("prepare", "run", RECIPE)
    assert done.count("\nprepared: ") == 4 and "to be prepared" not in done
    (tmp_path / "data" / "timestamps" / "dev-clean.jsonl").unlink()
    out = stentor("train", RECIPE)
    assert re.findall(r"Preparing (\S+) \((\w+), (\d) of 4\)", out) == [
        ("data/timestamps/dev-clean.jsonl", "words", "4")
    ]
    run = tmp_path / "runs" / "voxlm-0.5b"
    results = json.loads((run / "results.json").read_text())
    assert results["export"] and results["data"]["used"] == 12
    assert (run / "export" / "config.json").exists()
    assert "Preparing" not in stentor("train", RECIPE)
    planned = stentor("train", RECIPE, "--plan-only")
    assert planned.count("prepared: ") == 4 and planned.count("Parameters") == 2
    # Other settings are another thing to be made.
    checked = stentor("config", "check", RECIPE, "prepare.3.max_wer=0.5")
    assert checked.count("to be prepared: ") == 1
