"""Models that say who speaks, through the command line: tiny ones learn eight conversations of two built-in voices by
heart, stop by themselves, and their transcripts name speakers in every format."""

import json

import pytest
import soundfile
import tiny_turns
import torch
from tiny_runs import records_of, run

from stentor.data.load_audio import load_audio
from stentor.sources.base import Source

pytestmark = pytest.mark.long

torch.set_num_threads(1)

SYNTH = {"type": "synth", "texts": "digits", "voices": {"count": 2}}
SHORT = {"seconds": None, "turns": [3, 3], "turn": [0.4, 1.2], "speakers": 2, "noise": None}
KIND = "moss_transcribe_diarize"


def conversations(seed):
    return {"type": "conversation", "source": {**SYNTH, "count": 24}, "count": 8, "seed": seed, **SHORT}


def write_audio(path, cut, rate):
    """As float32: over silence, the norms of a random codec encoder make much of what 16 bits would round off."""
    soundfile.write(path, load_audio(cut, rate), rate, subtype="FLOAT")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """The run in which all weights learnt eight conversations."""
    folder = tmp_path_factory.mktemp("learnt")
    tokenizer = tiny_turns.write_processor(KIND, folder / "processor")
    scratch = {"config": {"model_type": KIND, **tiny_turns.CONFIGS[KIND]}, "tokenizer": str(tokenizer)}
    section = {"type": "audio_llm", "max_text_tokens": 400, "token_rate": 20.0, **scratch}
    options = {"task.type": "who_said_what", "data.batch_tokens": 4000, "data.max_items": 8, "schedule.type": "cosine"}
    return run(folder, "full", section, conversations(0), steps=90, lr=3e-3, **options)


def test_all_weights_learn_conversations(learnt):
    results = json.loads((learnt / "results.json").read_text())["eval"]["same"]
    scores = {name: score["value"] for name, score in results.items()}
    assert next(iter(scores)) == "cpwer" and max(scores["cpwer"], scores["tcpwer"]) < 0.05 and scores["der"] < 0.1
    outputs = [p["output"] for p in records_of(learnt / "predictions" / "same.jsonl")]
    assert len(outputs) == 8 and not any(output.get("unread") for output in outputs)
    assert all({s["speaker"] for s in output["segments"]} == {"speaker_1", "speaker_2"} for output in outputs)


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
