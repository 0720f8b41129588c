"""Models that say who speaks, through the command line: tiny ones learn eight conversations of two built-in voices by
heart, stop by themselves, and their transcripts name speakers in every format."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import tiny_turns
import torch
from tiny_runs import records_of, run, write_records

from stentor.data.load_audio import load_audio
from stentor.data.turns import turns_of
from stentor.models.base import Family
from stentor.sources.base import Source

pytestmark = pytest.mark.long

torch.set_num_threads(1)

SYNTH = {"type": "synth", "texts": "digits", "voices": {"count": 2}}
SHORT = {"seconds": None, "turns": [3, 3], "turn": [0.4, 1.2], "speakers": 2, "noise": None}
STEPS = {"vibevoice_asr": 45, "moss_transcribe_diarize": 90}
RATES = {"vibevoice_asr": 24000, "moss_transcribe_diarize": 16000}
KINDS = ["moss_transcribe_diarize", pytest.param("vibevoice_asr", marks=pytest.mark.slow)]


def conversations(seed):
    return {"type": "conversation", "source": {**SYNTH, "count": 24}, "count": 8, "seed": seed, **SHORT}


def write_audio(path, cut, rate):
    """As float32: over silence, the norms of a random codec encoder make much of what 16 bits would round off."""
    soundfile.write(path, load_audio(cut, rate), rate, subtype="FLOAT")


def train(folder, name, model, data, *, steps, lr=3e-3):
    """The run's folder."""
    options = {"task.type": "who_said_what", "data.batch_tokens": 4000, "data.max_items": 8, "schedule.type": "cosine"}
    section = {"type": "audio_llm", "max_text_tokens": 400, "token_rate": 20.0, **model}
    return run(folder, name, section, data, steps=steps, lr=lr, **options)


@pytest.fixture(scope="module", params=KINDS)
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
    return train(folder, "full", scratch, conversations(0), steps=STEPS[kind])


@pytest.fixture(scope="module")
def recordings(kind, tmp_path_factory):
    """A manifest with the eight conversations as files at the rate of the model."""
    folder, records = tmp_path_factory.mktemp("recordings"), []
    for i, cut in enumerate(Source.model_validate(conversations(0)).cuts()):
        audio = folder / f"{i}.wav"
        write_audio(audio, cut, RATES[kind])
        segments = [t | {"speaker": str(t["speaker"])} for t in turns_of(cut)]
        records.append({"id": str(i), "audio_path": str(audio), "segments": segments})
    return write_records(folder / "recordings.jsonl", records)


def plain_answers(kind, export, data):
    """Start, end and words of the turns that transformers alone writes, in a process that knows no Stentor."""
    script = Path(__file__).with_name("plain_transformers.py")
    command = [sys.executable, str(script), kind, str(export)]
    done = subprocess.run(command, input=data.read_text(), capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    processor = Family.choices()["audio_llm"].load(export).processor
    answers = []
    for text, ids in json.loads(done.stdout.splitlines()[-1]):
        turns, complete = processor.parse(text)
        assert complete and ids[-1] == processor.eos_id
        answers.append([(t["start"], t["end"], processor.written(text[slice(*t["span"])]).strip()) for t in turns])
    return answers


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


@pytest.mark.slow
def test_transformers_alone_writes_what_was_learnt(kind, learnt, recordings):
    answers = plain_answers(kind, learnt / "export", recordings)
    assert [[text for _, _, text in turns] for turns in answers] == [
        [turn["text"] for turn in record["segments"]] for record in records_of(recordings)
    ]


def test_transcripts_name_speakers_in_every_format(learnt, tmp_path):
    from stentor.cli import main

    cut = next(iter(Source.model_validate(conversations(0)).cuts()))
    write_audio(tmp_path / "talk.wav", cut, 24000)
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
