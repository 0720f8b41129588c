"""The family `transducer`: an encoder with a GRU and a joint learns, decodes the same in any batch, and times words."""

import json

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from tiny_runs import records_of, run
from tiny_transducers import OWN as MODEL
from tiny_transducers import OWN_LORA as LORA

from stentor.cli import main
from stentor.commands.quickstart import CONFIGS
from stentor.config.load import load as load_config
from stentor.config.load import stage_configs
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.inference.load import load
from stentor.models.base import Family, TaskRequirements
from stentor.models.decoding.transducer import greedy

torch.set_num_threads(1)

TEXTS = ("one two three", "nine eight", "zero zero seven", "six")
SECONDS = (1.3, 0.9, 4.07, 0.5)


def build(terms=("rnnt", "ctc", "times"), texts=TEXTS, **keys):
    torch.manual_seed(0)
    family = Family.model_validate({**MODEL, **keys})
    return family.build(TaskRequirements("transcribe", terms, lambda: iter(texts)))


def examples():
    rng = np.random.default_rng(0)
    return [
        Example(f"clip{i}", rng.standard_normal(round(16000 * seconds)).astype(np.float32) / 10, text)
        for i, (seconds, text) in enumerate(zip(SECONDS, TEXTS))
    ]


class Scripted:
    """A model whose joint answers what a table says for a frame and the number of tokens before it."""

    blank, max_symbols = 0, 3

    def __init__(self, table, durations=None):
        self.table, self.durations = table, durations

    def predict(self, tokens, state):
        count = torch.zeros(1, len(tokens), 1) if state is None else state[0] + 1
        return count.transpose(0, 1).clone(), (count.clone(),)

    def joint(self, encoder, predictor):
        return self.table[encoder[..., 0].long(), predictor[..., 0].long().expand(encoder.shape[:-1])]


def plain_greedy(table, frames, limit, durations, max_symbols=3):
    """One item, one look at the joint at a time."""
    t, ids, spans, at_frame = 0, [], [], 0
    while t < frames and len(ids) < limit:
        logits = table[t, len(ids)]
        tokens = logits if durations is None else logits[: -len(durations)]
        token = int(tokens.argmax())
        jump = int(token == 0) if durations is None else durations[int(logits[-len(durations) :].argmax())]
        if token == 0:
            t, at_frame = t + max(jump, 1), 0
            continue
        ids.append(token)
        spans.append((t, t + max(jump, 1)))
        at_frame += 1
        jump = jump or int(at_frame >= max_symbols)
        t, at_frame = t + jump, 0 if jump else at_frame
    return ids, spans


@pytest.mark.parametrize("durations", [None, (0, 1, 2, 4)])
def test_greedy_decoding_is_that_of_one_frame_at_a_time(durations):
    for seed in range(10):
        torch.manual_seed(seed)
        table = torch.randn(30, 60, 5 + len(durations or ()))
        table[..., 0] += 1.0  # blank, often
        frames, limits = torch.tensor([30, 1, 17, 22]), [100, 100, 5, 100]
        states = torch.arange(30.0)[None, :, None].expand(4, 30, 1)
        paths = greedy(Scripted(table, durations), states, frames, limits)
        for path, n, limit in zip(paths, frames.tolist(), limits):
            assert (path.ids, path.spans) == plain_greedy(table, n, limit, durations)
            assert len(path.log_probs) == len(path.ids)


def test_words_are_where_the_times_head_says():
    bundle = build()
    words = [{"word": "one", "start": 0.2, "end": 0.42}, {"word": "two", "start": 0.5, "end": 0.9}]
    first, *rest = examples()
    first.extra["times"] = words
    batch = bundle.processor.collate([first, *rest])
    targets = batch.inputs["word_times"]
    assert targets.shape == (4, bundle.processor.frames(len(examples()[2].audio)), 2)
    frame = 0.04
    for k in range(targets.shape[1]):
        middle = (k + 0.5) * frame
        word = next((w for w in words if w["start"] <= middle < w["end"]), None)
        expected = [-100.0] * 2 if word is None else [(middle - word["start"]) / frame, (word["end"] - middle) / frame]
        assert targets[0, k].tolist() == pytest.approx(expected, abs=1e-3)
    assert batch.counts["times"] == int((targets[0] != -100).sum()) and (targets[1:] == -100).all()
    with torch.no_grad():
        bundle.model.times_head.weight.zero_()
        bundle.model.times_head.bias.copy_(torch.tensor([1.0, 2.0]))
        inputs = bundle.processor.collate([first], labels=False).inputs
        (seconds,) = bundle.model._token_seconds(inputs, [[(3, 4), (7, 8)]])
    assert [t for span in seconds for t in span] == pytest.approx([0.14, 0.18, 0.3, 0.34])


@pytest.mark.parametrize(
    ("terms", "keys", "message"),
    [
        (("text",), {"times": False}, r"losses: {rnnt: rnnt, ctc: {type: ctc, weight: 0.3}}"),
        (("rnnt", "ctc", "times"), {"ctc": None}, "loss terms rnnt, times, not rnnt, ctc, times"),
        (("rnnt",), {}, "loss terms rnnt, ctc, times, not rnnt"),
    ],
)
def test_loss_terms_are_those_of_the_model(terms, keys, message):
    with pytest.raises(ConfigError, match=message.replace("{", r"\{")):
        build(terms, **keys)


def test_one_origin():
    with pytest.raises(ValueError, match="give one of `from`"):
        Family.model_validate({"type": "transducer"})


def test_the_quickstart_knows_its_models(capsys):
    for name, path in CONFIGS.items():
        assert all(config.model.type == name for config in stage_configs(load_config(path)))
    assert main(["quickstart", "--model", "nothing"]) == 2
    assert "known: transducer, speech_llm" in capsys.readouterr().err


# Through the command line -------------------------------------------------------------------------------------------


LOSSES = {"rnnt": "rnnt", "ctc": {"type": "ctc", "weight": 0.3}}
LOSSES["times"] = {"type": "smooth_l1", "sigmoid": False, "weight": 0.3}


def train(folder, name, data, model, steps, **options):
    task = {"type": "words", "normalizer": "none"}
    optim = {"optim.type": "muon", "optim.muon_lr": 0.02, "data.batch_tokens": 4000, "data.max_items": 64}
    options |= {"losses": json.dumps(LOSSES), "callbacks": "[{type: calibrate, least: 10}]", "train.use": "last"}
    return run(folder, name, model, data, steps=steps, lr=4e-3, task=task, **optim, **options)


@pytest.fixture(scope="module")
def learnt(eight, tmp_path_factory):
    """A run that learnt eight clips by heart."""
    return train(tmp_path_factory.mktemp("transducer"), "full", eight, MODEL, 70)


@pytest.fixture(scope="module")
def record(eight):
    """One of them."""
    return records_of(eight)[2]


def test_eight_clips_are_learnt_and_timed(learnt, record):
    scores = json.loads((learnt / "results.json").read_text())["eval"]["same"]
    assert scores["wer"]["value"] < 0.05 and scores["ctc_wer"]["value"] < 0.5
    assert scores["word_time_median_ms"]["value"] < 80 and 0 <= scores["ece"]["value"] < 0.3
    transcript = load(learnt).transcribe(record["audio_path"])
    assert [w["word"] for w in transcript.words] == record["text"].split() == transcript.text.split()
    starts = [w["start"] for w in transcript.words]
    assert starts == sorted(starts) and all(w["start"] < w["end"] for w in transcript.words)


def test_an_export_says_what_the_model_said(learnt):
    lines, model = records_of(learnt / "predictions" / "same.jsonl"), load(learnt)
    assert model.bundle.model.calibration.tolist() != [1.0, 0.0, 0.0]
    for line in lines:
        again = model.transcribe(line["record"]["audio_path"])
        assert again.text == line["output"]["text"]
        assert again.words[0]["start"] == pytest.approx(line["output"]["words"][0]["start"], abs=2e-3)
        assert again.words[0]["confidence"] == pytest.approx(line["output"]["words"][0]["confidence"], abs=1e-3)


@pytest.mark.parametrize("engine", [None, "ctc"])
def test_it_aligns_from_the_command_line(engine, learnt, record, tmp_path):
    (tmp_path / "text.txt").write_text(record["text"])
    out, options = tmp_path / "out", ["--engine", engine] if engine else []
    text = str(tmp_path / "text.txt")
    assert not main(["align", str(learnt), record["audio_path"], text, "--out", str(out), *options])
    (aligned,) = out.glob("*.json")
    words = json.loads(aligned.read_text())["words"]
    assert [w["word"] for w in words] == record["text"].split()
    if engine is None:
        # The best path may place a token of so small a model elsewhere than greedy decoding: most words agree.
        written = load(learnt).transcribe(record["audio_path"]).words
        moved = [abs(a[key] - b[key]) for a, b in zip(words, written, strict=True) for key in ("start", "end")]
        assert np.median(moved) <= 0.04


def test_a_word_that_cannot_be_written_takes_the_sound_that_is_there(learnt, record):
    model = load(learnt)
    audio, task = soundfile.read(record["audio_path"], dtype="float32")[0], model.task
    first, _, *rest = record["text"].split()
    texts = [record["text"], " – ".join([first.upper() + ",", "2", *rest]), "2", "", "one " * 1000]
    plain, other, unknown, nothing, long = task.align(model.bundle, [Example("a", audio, text) for text in texts])
    assert [w["word"] for w in other] == [first.upper() + ",", "2", *rest]
    for key in ("start", "end"):
        assert [w[key] for w in other] == pytest.approx([w[key] for w in plain], abs=0.081)
    assert [w.get("unwritten") for w in other] == [None, True, *[None] * len(rest)]
    assert (other[1]["confidence"], unknown[0]["word"], nothing, long) == (0.0, "2", [], None)


def test_adapters_learn_and_go_on(learnt, eight, tmp_path):
    folder = train(tmp_path, "lora", eight, {**MODEL, **LORA, "init": str(learnt / "export")}, 10)
    assert json.loads((folder / "results.json").read_text())["eval"]["same"]["wer"]["value"] < 0.05
    adapters = load_file(folder / "export" / "adapter_model.safetensors")
    assert adapters and all(".lora_" in name for name in adapters)
