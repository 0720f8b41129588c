"""Models that speak, through the command line: trained, resumed, spoken with, evaluated; ten sentences by heart."""

import json

import numpy as np
import pytest
import soundfile
import tiny_tts_frames as frames
import torch
from tiny_runs import records_of, run, write_records
from tiny_tts import CONFIGS as OF_TOKENS
from tiny_tts import source

from stentor.audio.io import read
from stentor.cli import main
from stentor.inference.load import load
from stentor.models.codecs.base import at_peak

pytestmark = pytest.mark.long

torch.set_num_threads(1)
CONFIGS = {"csm": OF_TOKENS["csm"], "pocket_tts": frames.CONFIGS["pocket_tts"]}
KINDS = tuple(CONFIGS)
TERMS = {"pocket_tts": {"codes_flow", "codes_end"}}
SENTENCES = ("one", "two", "three", "four", "five", "turn left", "turn right", "go on", "stop", "lights off")
WIDE = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24}
CSM = {**CONFIGS["csm"], **WIDE, "depth_decoder_config": {**CONFIGS["csm"]["depth_decoder_config"], **WIDE}}
"""Large enough to learn ten sentences."""
TASK = {"type": "speak", "samples": 1, "drop_cond_ratio": 0.0}


def train(folder, name, kind, config, data, *, steps, model=None, lr=2e-3, **options):
    """The run's folder."""
    if kind == "csm":
        start = source(kind, folder / "processor", config)
    else:
        start = {"config": config, "tokenizer": str(frames.write(kind, folder / "processor"))}
    options |= {"data.batch_tokens": 4000, "data.max_items": 64}
    return run(folder, name, {"type": kind, **start, **(model or {})}, data, steps=steps, lr=lr, task=TASK, **options)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind, corpus, tmp_path_factory):
    return train(tmp_path_factory.mktemp(kind), "run", kind, CONFIGS[kind], corpus / "dev.jsonl", steps=3)


def test_a_run_scores_its_loss_and_speaks_a_sample(kind, trained, rows):
    scores = json.loads((trained / "results.json").read_text())["eval"]["same"]
    assert set(scores["loss"]["details"]["targets"]) == TERMS.get(kind, {"codes"})
    losses = [row["train/loss"] for row in rows(trained)]
    assert losses[-1] < losses[0]
    assert [p["output"]["frames"] > 0 for p in records_of(trained / "predictions" / "same.jsonl")] == [True]


def test_speak_and_evaluate_are_as_with_other_models(trained, corpus, tmp_path, capsys):
    assert main(["speak", str(trained), "one two", "--out", str(tmp_path / "a.wav")]) == 0
    audio, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == load(str(trained)).bundle.processor.sample_rate and len(audio) > 0
    assert main(["speak", str(trained), "one", "--steps", "4", "--out", str(tmp_path / "b.wav")]) == 2
    assert "this model generates one frame at a time" in capsys.readouterr().err
    records = [{**r, "audio_path": str(corpus / r["audio_path"])} for r in records_of(corpus / "dev.jsonl")[:2]]
    data = write_records(tmp_path / "two.jsonl", records)
    assert main(["evaluate", str(trained), "--data", str(data), "--json", str(tmp_path / "scores.json")]) == 0


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """A manifest of ten sentences of the built-in voice."""
    from stentor.audio.io import write
    from stentor.audio.synth import say

    folder = tmp_path_factory.mktemp("ten")
    records = []
    for number, text in enumerate(SENTENCES):
        write(folder / f"{number}.wav", say(text, voice="en-us", speed=200, pitch=50).audio, 16000)
        records.append({"id": str(number), "audio_path": f"{number}.wav", "text": text})
    return write_records(folder / "ten.jsonl", records)


@pytest.mark.slow
def test_ten_sentences_by_heart(ten, tmp_path):
    """What is spoken has the codes of the recordings, so that it sounds as they do through the codec: a recogniser
    reads the one as the other."""
    bundle = load(str(train(tmp_path, "heart", "csm", CSM, ten, steps=300))).bundle
    codec, right = bundle.processor.codec, 0
    for number, text in enumerate(SENTENCES):
        codes = codec.encode([at_peak(read(ten.parent / f"{number}.wav", rate=codec.sample_rate))])[0]
        prompt = bundle.processor.utterance(text, frames=codes.shape[1])
        (spoken,) = bundle.model.speak([prompt])
        right += np.array_equal(spoken, codes)
    assert right == len(SENTENCES)


@pytest.mark.slow
def test_ten_sentences_in_latents(ten, tmp_path):
    """Of Pocket TTS, whose codes are real numbers: what is spoken is nearest to its own recording, frame by frame, and
    ends where that does."""
    model = {"generation": {"temperature": 0.0, "flow_steps": 4}}
    options = {"steps": 400, "lr": 3e-3, "schedule.type": "cosine"}
    bundle = load(
        str(train(tmp_path, "heart", "pocket_tts", CONFIGS["pocket_tts"], ten, model=model, **options))
    ).bundle
    codec = bundle.processor.codec
    audios = [at_peak(read(ten.parent / f"{number}.wav", rate=codec.sample_rate)) for number in range(len(SENTENCES))]
    latents = codec.encode(audios)
    deviation = np.concatenate(latents, 1).std(1)[:, None]
    for number, text in enumerate(SENTENCES):
        (spoken,) = bundle.model.speak([bundle.processor.utterance(text, frames=latents[number].shape[1])])
        # transformers ends nothing before its sixth frame, and five frames follow the end.
        assert 5 <= spoken.shape[1] - max(latents[number].shape[1], 6) <= 7, text
        away = [np.abs((spoken[:, : c.shape[1]] - c[:, : spoken.shape[1]]) / deviation).mean() for c in latents]
        assert away[number] == min(away) and away[number] < 0.3, text
