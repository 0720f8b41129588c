"""Models that speak, through the command line: trained, resumed, spoken with, evaluated; ten sentences by heart."""

import json

import numpy as np
import pytest
import soundfile
import tiny_tts_frames as frames
import torch
from tiny_tts import CONFIGS as OF_TOKENS
from tiny_tts import WRITE as WRITE_OF_TOKENS
from tiny_tts import source

from stentor.audio.io import read
from stentor.cli import main
from stentor.inference.load import load
from stentor.models.codecs.base import at_peak

pytestmark = pytest.mark.long

torch.set_num_threads(1)
CONFIGS = {**OF_TOKENS, **{kind: frames.CONFIGS[kind] for kind in ("higgs_audio_v2", "pocket_tts")}}
WRITE = {
    **WRITE_OF_TOKENS,
    "higgs_audio_v2": frames.write_higgs,
    "pocket_tts": lambda folder: frames.write_pocket(folder, frames.POCKET_TOKENS),
}
KINDS = tuple(CONFIGS)
TERMS = {"pocket_tts": {"codes_flow", "codes_end"}}
SENTENCES = ("one", "two", "three", "four", "five", "turn left", "turn right", "go on", "stop", "lights off")
WIDE = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24}
CROSS = {"cross_num_attention_heads": 4, "cross_num_key_value_heads": 4, "cross_head_dim": 24}
LEARNS = {  # large enough to learn ten sentences
    "csm": {**CONFIGS["csm"], **WIDE, "depth_decoder_config": {**CONFIGS["csm"]["depth_decoder_config"], **WIDE}},
    "dia": {
        **CONFIGS["dia"],
        "encoder_config": {**CONFIGS["dia"]["encoder_config"], **WIDE},
        "decoder_config": {**CONFIGS["dia"]["decoder_config"], **WIDE, **CROSS},
    },
    "higgs_audio_v2": CONFIGS["higgs_audio_v2"],
    "pocket_tts": CONFIGS["pocket_tts"],
}


def write_run(folder, name, kind, config, manifest, **sections):
    if kind in OF_TOKENS and "codec" not in sections.get("model", {}):
        start = source(kind, folder / "processor", config)
    else:
        start = {"config": config, "tokenizer": str(WRITE[kind](folder / "processor"))}
    run = {
        "name": name,
        "output": str(folder / "runs"),
        "task": {"type": "speak", "samples": 1, "drop_cond_ratio": 0.0},
        "model": {"type": kind, **start},
        "data": {"train": [manifest], "eval": {"same": manifest}, "batch_tokens": 4000, "workers": 0},
        "optim": {"type": "adamw", "lr": 2e-3, "weight_decay": 0.0},
        "schedule": {"type": "constant", "warmup_steps": 5},
        "train": {"steps": 3, "log_every": 1, "eval_every": 1000, "save_every": 1000, "device": "cpu"},
    }
    for section, keys in sections.items():
        run[section] |= keys
    path = folder / f"{name}.json"
    path.write_text(json.dumps(run))
    return path


@pytest.fixture(
    scope="module", params=[pytest.param(k, marks=[pytest.mark.slow] * (k in ("dia", "higgs_audio_v2"))) for k in KINDS]
)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp(kind)
    manifest = {"type": "jsonl", "path": str(corpus / "dev.jsonl")}
    path = write_run(folder, "run", kind, CONFIGS[kind], manifest)
    assert main(["train", str(path)]) == 0
    return folder / "runs" / "run"


def test_a_run_scores_its_loss_and_speaks_a_sample(kind, trained, rows):
    scores = json.loads((trained / "results.json").read_text())["eval"]["same"]
    assert set(scores["loss"]["details"]["targets"]) == TERMS.get(kind, {"codes"})
    losses = [row["train/loss"] for row in rows(trained)]
    assert losses[-1] < losses[0]
    predictions = [json.loads(line) for line in (trained / "predictions" / "same.jsonl").read_text().splitlines()]
    assert [p["output"]["frames"] > 0 for p in predictions] == [True]


def test_speak_and_evaluate_are_as_with_other_models(trained, corpus, tmp_path, capsys):
    assert main(["speak", str(trained), "one two", "--out", str(tmp_path / "a.wav")]) == 0
    audio, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == load(str(trained)).bundle.processor.sample_rate and len(audio) > 0
    assert main(["speak", str(trained), "one", "--steps", "4", "--out", str(tmp_path / "b.wav")]) == 2
    assert "this model makes one frame after the other" in capsys.readouterr().err
    data = tmp_path / "two.jsonl"
    lines = (corpus / "dev.jsonl").read_text().splitlines()[:2]
    records = [json.loads(line) for line in lines]
    for record in records:
        record["audio_path"] = str(corpus / record["audio_path"])
    data.write_text("\n".join(map(json.dumps, records)))
    assert main(["evaluate", str(trained), "--data", str(data), "--json", str(tmp_path / "scores.json")]) == 0


@pytest.mark.slow
def test_adapters_are_trained_and_spoken_with(kind, trained, corpus, tmp_path):
    path = write_run(tmp_path, "lora", kind, CONFIGS[kind], {"type": "jsonl", "path": str(corpus / "dev.jsonl")})
    run = json.loads(path.read_text())
    run["model"] = {"type": "tts", "from": str(trained / "export"), "lora": {"rank": 4}}
    path.write_text(json.dumps(run))
    assert main(["train", str(path)]) == 0
    folder = tmp_path / "runs" / "lora"
    assert list((folder / "export").glob("adapter_model*")) and not list((folder / "export").glob("model*.safetensors"))
    assert main(["speak", str(folder), "one two", "--out", str(tmp_path / "a.wav")]) == 0
    assert len(soundfile.read(tmp_path / "a.wav")[0]) > 0


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """A manifest of ten sentences of the built-in voice."""
    from stentor.audio.io import write
    from stentor.audio.synth import say

    folder = tmp_path_factory.mktemp("ten")
    lines = []
    for number, text in enumerate(SENTENCES):
        write(folder / f"{number}.wav", say(text, voice="en-us", speed=200, pitch=50).audio, 16000)
        lines.append(json.dumps({"id": str(number), "audio_path": f"{number}.wav", "text": text}))
    (folder / "ten.jsonl").write_text("\n".join(lines))
    return folder / "ten.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "codec"),
    [("csm", "its own"), ("dia", "its own"), ("csm", "mel_rvq"), ("dia", "mel_rvq"), ("higgs_audio_v2", "its own")],
)
def test_ten_sentences_by_heart(of, codec, ten, tmp_path):
    """What is spoken has the codes of the recordings, so that it sounds as they do through the codec: a recogniser
    reads the one as the other."""
    model, config = {}, LEARNS[of]
    if codec == "mel_rvq":
        model = {"codec": {"type": "mel_rvq", "stack": 4, "codebooks": 3, "entries": 64}}
        config = {k: v for k, v in config.items() if k not in ("num_codebooks", "vocab_size", "codebook_pad_token_id")}
    manifest = {"type": "jsonl", "path": str(ten)}
    path = write_run(tmp_path, "heart", of, config, manifest, model=model, train={"steps": 300})
    assert main(["train", str(path)]) == 0
    bundle = load(str(tmp_path / "runs" / "heart")).bundle
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
    path = write_run(
        tmp_path,
        "heart",
        "pocket_tts",
        LEARNS["pocket_tts"],
        {"type": "jsonl", "path": str(ten)},
        model={"generation": {"temperature": 0.0, "flow_steps": 4}},
        optim={"lr": 3e-3},
        schedule={"type": "cosine"},
        train={"steps": 400},
    )
    assert main(["train", str(path)]) == 0
    bundle = load(str(tmp_path / "runs" / "heart")).bundle
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
