"""One list of checks: what can be known before step 1 is found by `config check`, `--plan-only` and `train` alike."""

import json
import re
from unittest.mock import Mock

import pytest

from stentor.config import checks
from stentor.models.pretrained.load import NotAtHand
from tiny_configs import WAVE

STREAM = "data.train=[{type: hub, name: someone/speech, split: train, stream: true}]"
WRONG = {
    "a metric's set": (["callbacks=[{type: early_stop, metric: val/wer}]"], "'val/wer' is not SET/METRIC"),
    "a metric": (["callbacks=[{type: early_stop, metric: dev/der}]"], "dev logs no metric 'der'"),
    "a callback's set": (["task=words", "callbacks=[{type: calibrate, set: val}]"], "data.eval has no 'val'"),
    "a callback's model": (["callbacks=[redraw]"], "`redraw` finds no random features"),
    "a set to average by": (["model.init=there", "train.interpolate={set: val}"], "there is no set `val`"),
    "an average with noise": (["train.interpolate=0.5"], "an average with those is useless"),
    "a stream's length": ([STREAM, "train.steps=null"], "train.steps: `data.train.0` is a stream"),
    "targets": (["model.lora={targets: [llm.*.qkv_proj]}"], "model.lora.targets: 'llm.*.qkv_proj' matches nothing"),
    "frozen targets": (["model.lora.rank=2", "model.freeze=[llm.*]"], "every layer that matches is frozen"),
    "frozen parts": (["model.freeze=[encodr.*]"], "model.freeze: 'encodr.*' matches nothing"),
    "everything frozen": (["model.freeze=['*']"], "no parameter is trainable"),
    "a group": (["optim.groups=[{params: [front.*]}]"], "optim.groups.0: no trainable parameter matches front.*"),
    "a rate": (["model.projector.rate=13"], "model.projector.rate: "),
    "a head that no term trains": (["losses.ctc=null"], "model.ctc: the head would never be trained"),
    "a term without a head": (["model.ctc=null"], "losses.ctc needs a CTC head"),
}


@pytest.fixture
def verbs(attempt, tmp_path):
    """Gives a run file and overrides to each verb, which must refuse it alike and leave nothing; what they wrote."""

    def run(path, *overrides):
        commands = ["config", "check"], ["train", "--plan-only"], ["train"]
        answers = {attempt(*command, path, *overrides) for command in commands}
        assert len(answers) == 1, answers
        ((code, text),) = answers
        assert code == 2 and not (tmp_path / "runs").exists(), text
        return text

    return run


@pytest.mark.parametrize("what", WRONG)
def test_each_verb_finds_it(verbs, tiny, what):
    overrides, message = WRONG[what]
    text = verbs(tiny(), *overrides)
    assert message in text, text
    assert text.count("\n") == (2 if "task=words" in overrides else 1)  # for which there is no alignment module


@pytest.mark.parametrize("flags", [["--plan-only"], []])
def test_everything_frozen_where_the_check_could_not_see_the_model(attempt, tiny, monkeypatch, flags):
    monkeypatch.setattr(checks, "skeleton", Mock(side_effect=NotAtHand("the weights come later")))
    code, text = attempt("train", *flags, tiny(), "model.freeze=['*']")
    assert code == 2 and "model.freeze: no parameter is trainable: remove from `freeze`" in text, text


def test_all_are_found_at_once_each_with_its_line(verbs, tiny):
    path = tiny()
    path.write_text(
        path.read_text().replace("type: mlp, rate: 12.5", "type: mlp, rate: 13")
        + "callbacks: [{type: early_stop, metric: val/wer}]\n"
        + "stages:\n- name: a\n- callbacks: [redraw, {type: calibrate}]\n"
    )
    lines = path.read_text().splitlines()
    text = verbs(path)
    for part, key in (
        ("val/wer", "callbacks: [{"),
        ("projector.rate", "rate: 13"),
        ("calibrate is for", "- callbacks"),
    ):
        number = next(i for i, line in enumerate(lines, 1) if key in line)
        assert any(f"{path}:{number}: " in line and part in line for line in text.splitlines()), (part, text)


def test_windows_that_an_encoder_has_not(verbs, tiny):
    path = tiny()
    text, encoder = path.read_text(), json.dumps({"model_type": "wav2vec2", **WAVE})
    path.write_text(re.sub(r"config: \{model_type: whisper[^}]*\}", f"window: 30s\n    config: {encoder}", text))
    assert f"{path}:5: model.encoder.window: 30s is for Whisper encoders" in verbs(path)


def test_weights_of_codebooks(attempt, tmp_path):
    llm = "{config: {model_type: qwen3, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, head_dim: 8}}"
    model = f"{{type: omnivoice, llm: {llm}, text: {{type: characters}}, codebooks: 2, entries: 32}}"
    losses = "{codes: {type: codebook, weights: [2, 1, 1]}}"
    data = "{train: [{type: shards, path: gone.lst}]}"
    (tmp_path / "run.yaml").write_text(f"task: speak\nmodel: {model}\nlosses: {losses}\ndata: {data}\n")
    code, text = attempt("config", "check", tmp_path / "run.yaml")
    assert code == 2 and "run.yaml:3: losses.codes.weights: 3 weights for a codec with 2 codebooks" in text
    assert attempt("config", "check", tmp_path / "run.yaml", "losses.codes.weights=[2, 1]")[0] == 0


def test_nothing_is_written(attempt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = "{type: transformer, kind: encoder, encoder: {layers: 1}, features: {store: features}}"
    text = f"task: diarize\nmodel: {model}\ndata: {{train: [{{type: jsonl, path: gone.jsonl}}]}}\n"
    (tmp_path / "run.yaml").write_text(text)
    assert attempt("config", "check", "run.yaml")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_pretrained_base_is_checked_without_its_weights(attempt, tiny, whisper, tmp_path):
    for weights in whisper.glob("*.safetensors"):
        bare = tmp_path / "bare"
        bare.mkdir()
        for file in whisper.iterdir():
            if file != weights:
                (bare / file.name).write_bytes(file.read_bytes())
    model = f"model={{type: seq2seq, from: {bare}, lora: {{targets: [TARGET]}}}}"
    run = ["config", "check", tiny(), "losses=null"]
    code, text = attempt(*run, model.replace("TARGET", '"model.decoder.*.q_proj"'))
    assert code == 0 and "not checked" not in text, text
    code, text = attempt(*run, model.replace("TARGET", '"model.decoder.*.qkv_proj"'))
    assert code == 2 and "'model.decoder.*.qkv_proj' matches nothing; there is for example" in text
    code, text = attempt(*run, model.replace(str(bare), str(tmp_path / "gone")))
    assert code == 0 and "the model are not checked: model.from: the folder" in text
