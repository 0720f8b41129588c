"""Models that say who speaks, through the command line: tiny ones learn eight conversations of two built-in voices by
heart, stop by themselves, and their transcripts name speakers in every format."""

import json

import pytest
import soundfile
import tiny_turns
import torch
from tiny_runs import records_of

from stentor.data.load_audio import load_audio
from stentor.sources.base import Source

torch.set_num_threads(1)

SYNTH = {"type": "synth", "texts": "digits", "voices": {"count": 2}}
SHORT = {"seconds": None, "turns": [3, 3], "turn": [0.4, 1.2], "speakers": 2, "noise": None}
STEPS = {"vibevoice_asr": 45, "moss_transcribe_diarize": 90}


def conversations(seed):
    return {"type": "conversation", "source": {**SYNTH, "count": 24}, "count": 8, "seed": seed, **SHORT}


def run(folder, name, model, source, task, *, steps, lr=3e-3):
    """Train through the command line on a source, which is evaluated too; the run's folder."""
    from stentor.cli import main

    config = {
        "name": name,
        "output": str(folder / "runs"),
        "task": {"type": task, "normalizer": "none"},
        "model": {"type": "audio_llm", "max_text_tokens": 400, "token_rate": 20.0, **model},
        "data": {"train": [source], "eval": {"same": source}, "batch_tokens": 4000, "max_items": 8, "workers": 0},
        "optim": {"type": "adamw", "lr": lr, "weight_decay": 0.0},
        "schedule": {"type": "cosine", "warmup_steps": 5},
        "train": {"steps": steps, "log_every": 5, "eval_every": 1000, "save_every": 1000, "device": "cpu"},
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    assert not main(["train", str(path)])
    return folder / "runs" / name


@pytest.fixture(scope="module", params=STEPS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def scratch(kind, tmp_path_factory):
    """The section of an untrained model."""
    tokenizer = tiny_turns.write_processor(kind, tmp_path_factory.mktemp("processor"))
    return {"config": {"model_type": kind, **tiny_turns.CONFIGS[kind]}, "tokenizer": str(tokenizer)}


@pytest.fixture(scope="module")
def learnt(kind, scratch, tmp_path_factory):
    """The run in which all weights learnt eight conversations."""
    folder = tmp_path_factory.mktemp("learnt")
    return run(folder, "full", scratch, conversations(0), "who_said_what", steps=STEPS[kind])


def scores_of(folder):
    return {name: s["value"] for name, s in json.loads((folder / "results.json").read_text())["eval"]["same"].items()}


def check_learnt(folder):
    scores = scores_of(folder)
    assert next(iter(scores)) == "cpwer" and scores["cpwer"] < 0.05
    predictions = records_of(folder / "predictions" / "same.jsonl")
    assert len(predictions) == 8 and not any(p["output"].get("unread") for p in predictions)
    assert scores["tcpwer"] < 0.05 and scores["der"] < 0.1
    return predictions


def test_all_weights_learn_conversations(learnt):
    predictions = check_learnt(learnt)
    assert all({s["speaker"] for s in p["output"]["segments"]} == {"speaker_1", "speaker_2"} for p in predictions)


def test_transcripts_name_speakers_in_every_format(learnt, tmp_path):
    from stentor.cli import main

    cut = next(iter(Source.model_validate(conversations(0)).cuts()))
    soundfile.write(tmp_path / "talk.wav", load_audio(cut, 24000), 24000)
    command = ["transcribe", str(learnt), str(tmp_path / "talk.wav"), "--words", "--format", "all"]
    assert not main([*command, "--out", str(tmp_path)])
    transcript = json.loads((tmp_path / "talk.json").read_text())
    spoken = [(s["speaker"], s["text"]) for s in transcript["segments"]]
    assert {name for name, _ in spoken} == {"speaker_1", "speaker_2"} and "warning" not in transcript
    assert [w["speaker"] for w in transcript["words"]] == [name for name, text in spoken for _ in text.split()]
    rttm, stm = ((tmp_path / f"talk.{kind}").read_text().splitlines() for kind in ("rttm", "stm"))
    assert [line.split()[7] for line in rttm] == [line.split()[2] for line in stm] == [name for name, _ in spoken]
    rows = json.loads((tmp_path / "talk.seglst.json").read_text())
    assert [(row["speaker"], row["words"]) for row in rows] == spoken
    assert len((tmp_path / "talk.ctm").read_text().splitlines()) == len(transcript["words"])
