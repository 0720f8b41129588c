"""The model of examples/model works from outside: tiny, it computes what transformers does and learns four clips."""

import json
from pathlib import Path

import pytest
import torch
from tiny_audio_llm import LENGTHS, build, examples, labels_of, loss, plain
from tiny_audio_llms import TEXT, bytes_tokenizer
from tiny_runs import records_of, write_run

torch.set_num_threads(1)

FILE = Path(__file__).parents[2] / "examples" / "model" / "audio_flamingo.py"
TOWER = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = {
    "model_type": "audioflamingo3",
    "audio_config": {**TOWER, "initializer_range": 0.2},
    "text_config": {**TEXT, "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128},
}


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    from transformers import AudioFlamingo3Processor, WhisperFeatureExtractor

    from stentor.config.plugins import load_plugins

    load_plugins([FILE])
    folder = tmp_path_factory.mktemp("processor")
    tokenizer = bytes_tokenizer("<sound>")
    extractor = WhisperFeatureExtractor(feature_size=128)
    AudioFlamingo3Processor(extractor, tokenizer, chat_template=tokenizer.chat_template).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(processor):
    return build(CONFIG, processor)


def test_it_is_short():
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 60


def test_positions_and_features_are_those_of_transformers(bundle):
    ours = bundle.processor
    for seconds in LENGTHS:
        (item,) = examples((seconds,))
        theirs = ours.hf.apply_transcription_request(item.audio)
        assert ours.positions(len(item.audio)) == int((theirs["input_ids"] == ours.audio_id).sum())
        inputs = ours.audio_inputs([item])
        assert torch.equal(inputs["input_features_mask"], theirs["input_features_mask"].long())
        assert torch.allclose(inputs["input_features"], theirs["input_features"], atol=1e-4)


def test_loss_is_that_of_transformers_in_any_batch(bundle):
    import transformers

    model = plain(bundle, transformers.AudioFlamingo3ForConditionalGeneration)
    items, total = examples((0.5, 31.0)), 0.0
    for item in items:
        inputs = bundle.processor.collate([item]).inputs
        audio = {name: inputs[name] for name in ("input_features", "input_features_mask")}
        with torch.no_grad():
            mean = model(input_ids=inputs["input_ids"], labels=labels_of(inputs), **audio).loss
        total += mean.item() * len(inputs["targets"])
    assert loss(bundle, items) == pytest.approx(total, abs=1e-3)


@pytest.mark.slow
def test_it_learns_and_transcribes_through_the_command_line(processor, four, here, tmp_path):
    section = {"type": "audio_llm", "config": CONFIG, "tokenizer": str(processor), "max_text_tokens": 64}
    run = write_run(tmp_path, "flamingo", section, four, steps=45, lr=3e-3)
    here("train", run, "data.batch_tokens=8000", "data.max_items=4", "--plugin", FILE)
    folder = tmp_path / "runs" / "flamingo"
    assert json.loads((folder / "results.json").read_text())["eval"]["same"]["wer"]["value"] < 0.05
    records = records_of(four)
    text = here("transcribe", folder, four.parent / records[0]["audio_path"], "--plugin", FILE)
    assert text.strip() == records[0]["text"]
