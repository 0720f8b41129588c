"""What the report shows of a model that speaks: players over their spectrograms, and the loss of each codebook."""

import json

import numpy as np
import pytest
import soundfile
from page import Page

from stentor.data.audio_base64 import encode_audio
from stentor.publish.card import write_card
from stentor.report.curves import all_charts
from stentor.report.report import write_report
from stentor.report.run_folder import read_run
from stentor.report.sounds import PAGE, SoundBudget
from stentor.report.voices import spread, voiced_sets

EVIL = '<script>alert("boo")</script>'
RATE = 16000
STEPS = range(100, 900, 100)


def tone(seconds, hertz=300):
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def row(name, seconds, prompt=0.0, **reference):
    output = {
        "audio": encode_audio(tone(seconds), RATE),
        "seconds": seconds,
        "frames": 50,
        "seed": 1,
        "prompt_seconds": prompt,
        "codec": encode_audio(tone(seconds, 200), RATE),
        "heard": {"text": {"synthetic": f"said {name} {EVIL}", "codec": ""}},
    }
    reference = {"text": f"say {name} {EVIL}", "language": "en", "speaker": "ann", "instruct": None, **reference}
    record = {"id": name, "voice": {"text": "one two"}}
    return {"id": name, "reference": reference, "output": output, "seconds": seconds, "record": record}


@pytest.fixture
def folder(tmp_path):
    """A finished run with two spoken records in one set, at eight evaluations."""
    folder = tmp_path / "run"
    (folder / "predictions").mkdir(parents=True)
    rows = [row("a/1", 1.0), row("b", 2.0, prompt=0.5, instruct="female, low pitch")]
    (folder / "predictions" / "dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with (folder / "samples.jsonl").open("w") as file:
        for step in STEPS:
            for number, r in enumerate(rows):
                place = f"samples/step-{step:06d}/dev/{number}.wav"
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(folder / place, tone(r["seconds"] + 0.1), RATE)
                output = {**r["output"], "audio": {"file": place, "rate": RATE}, "codec": {"file": "no", "rate": RATE}}
                sample = {"id": r["id"], "reference": r["reference"], "output": output}
                file.write(json.dumps({"step": step, "set": "dev", **sample}) + "\n")
    details = {"items": 40, "targets": {f"codes_{c}": 100 for c in range(8)}}
    results = {"eval": {"dev": {"loss": {"value": 3.25, "details": details}}}, "data": {"used": 3, "dropped": {}}}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "resolved.yaml").write_text("name: voice\ntask: {type: speak}\nmodel: {type: omnivoice}\n")
    with (folder / "metrics.jsonl").open("w") as file:
        for step in STEPS:
            train = {f"train/codes_{c}": 6 - step / 500 + c / 8 for c in range(8)}
            file.write(json.dumps({"step": step, "train/loss": 6 - step / 500, **train, "lr": 1e-4}) + "\n")
            terms = {f"eval/{s}/loss_codes_{c}": 6 - step / 500 + c for c in range(8) for s in ("dev", "other")}
            losses = {f"eval/{s}/loss": 6 - step / 500 for s in ("dev", "other")}
            file.write(json.dumps({"step": step, **losses, **terms}) + "\n")
    return folder


def test_players_with_their_pictures(folder):
    page = Page(write_report(folder).read_text())
    players = [p["aria-label"] for p in page.all("audio")]
    for name in ("a/1", "b"):
        of_record = [p for p in players if p.endswith(f" {name}")]
        # The last step is the final answer, which is shown above it in full; eight evaluations are six players.
        steps = ["100", "200", "400", "500", "700", "800"]
        expected = [f"recording {name}", f"codec {name}", f"spoken {name}", *(f"step {s} {name}" for s in steps)]
        assert of_record == expected
    pictures = [p for p in page.all("img") if p["src"].startswith("data:image/png")]
    assert len(pictures) == len(players) == 18 and all("Spectrogram of" in p["alt"] for p in pictures)
    assert all(p["src"].startswith("data:audio/flac;base64,") for p in page.all("audio"))
    text = "".join(page.text)
    assert "the first 0.5 s are the recording's own" in text and "voice female, low pitch" in text
    assert "2 records spoken at each evaluation, always the same; the loss is over all 40" in text
    assert "40 records, 800 targets" in text
    assert (
        f"heard as: said b {EVIL}" in text and f"say b {EVIL}" in text and len(page.all("script")) == 2
    )  # shown as text
    assert not page.all("article")[0].get("id") and "reference:" not in text  # not among the examples of texts


def test_all_sounds_of_a_card_have_one_scale(folder):
    (view,) = voiced_sets(read_run(folder), SoundBudget())
    one, two = view.voices
    assert [(s.label, s.width) for s in two.strips][1:] == [("codec", 95.24), ("spoken", 95.24)]
    assert {s.width for s in two.earlier} == {100.0} and one.strips[2].width == pytest.approx(90.91)
    assert two.strips[2].prompt == pytest.approx(25) and one.strips[2].prompt == 0


def test_final_sounds_come_first_when_the_budget_is_small(folder):
    budget = SoundBudget()
    (view,) = voiced_sets(read_run(folder), budget)
    strips = [s for v in view.voices for s in v.strips]
    cost = sum(
        len(s.sound) - len("data:audio/flac;base64,") + len(s.picture) - len("data:image/png;base64,") for s in strips
    )
    assert PAGE - budget.left > cost
    budget = SoundBudget(cost + 100)
    (view,) = voiced_sets(read_run(folder), budget)
    assert [len(v.strips) for v in view.voices] == [3, 3] and not any(v.earlier for v in view.voices)
    assert budget.left == 100 and voiced_sets(read_run(folder), budget) == [] and budget.left == 100


def test_a_run_that_goes_on_shows_its_newest_samples(folder):
    (folder / "results.json").unlink()
    (folder / "predictions" / "dev.jsonl").unlink()
    (folder / "samples" / "step-000800" / "dev" / "1.wav").unlink()  # somebody made room
    (view,) = voiced_sets(read_run(folder), SoundBudget())
    (voice,) = view.voices
    assert voice.id == "a/1" and [s.label for s in voice.strips] == ["spoken, step 800"]
    assert [s.label for s in voice.earlier][-1] == "step 700"


def test_what_was_said_before_training_comes_first(folder):
    (folder / "before").mkdir()
    (folder / "before" / "dev.jsonl").write_text(json.dumps(row("b", 2.0)) + "\n")
    (view,) = voiced_sets(read_run(folder), SoundBudget())
    assert [v.earlier[0].label for v in view.voices] == ["step 100", "before training"]


def test_models_without_a_codec_are_shown_as_before(folder):
    lines = [json.loads(line) for line in (folder / "predictions" / "dev.jsonl").read_text().splitlines()]
    rows = [r | {"output": {"silent": "the model has no codec"}} for r in lines]
    (folder / "predictions" / "dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "samples.jsonl").unlink()
    assert voiced_sets(read_run(folder), SoundBudget()) == []
    assert "the model has no codec" in "".join(Page(write_report(folder).read_text()).text)


def test_the_losses_of_codebooks_share_a_chart(folder):
    charts = {c.title: c for c in all_charts(read_run(folder).metrics)}
    assert [t for t in charts if "oss" in t] == [
        "Loss",
        "Training loss",
        "Training loss by codebook",
        "Loss by codebook, dev",
        "Loss by codebook, other",
    ]
    chart = charts["Loss by codebook, dev"]
    assert chart.ordered and [line.name for line in chart.lines] == list("01234567")
    assert [line.name for line in charts["Training loss"].lines] == ["total"]
    assert [line.name for line in charts["Loss"].lines] == ["dev", "other"] and not charts["Loss"].ordered


def test_other_terms_keep_their_charts():
    rows = [{"step": s, "eval/dev/loss_text": 1.0, "eval/dev/loss_ctc": 2.0, "train/loss": 1.0} for s in (1, 2)]
    assert [c.title for c in all_charts(rows)] == ["Loss, text", "Training loss", "Loss, ctc"]


def test_evaluations_are_spread_with_the_first_and_the_last():
    assert spread(list(range(8)), 6) == [0, 1, 3, 4, 6, 7] and spread([1, 2], 6) == [1, 2]
    assert spread(list(range(100)), 3) == [0, 50, 99]


def test_the_card_says_how_it_is_used_and_what_it_is_not(tmp_path):
    config = {
        "name": "voice",
        "task": {"type": "speak", "samples": 4},
        "model": {"type": "omnivoice", "codec": {"type": "mel_rvq"}, "from": None},
        "data": {"train": [{"type": "shards", "path": "tokens/data.lst"}], "eval": {}, "max_seconds": 30.0},
    }
    details = {"items": 40, "targets": {"codes_0": 100}}
    results = {"eval": {"dev": {"loss": {"value": 3.25, "details": details}}}, "data": {"used": 5}}
    card = write_card(tmp_path, config, results).read_text()
    assert "pipeline_tag: text-to-speech" in card and 'speech = model.speak("Good morning.", reference=' in card
    assert 'stentor speak voice "Good morning." --reference voice.wav' in card
    assert "| dev | loss | 3.25 |  | 40 records, 100 targets |" in card
    assert "not how the speech sounds" in card and "Griffin-Lim" in card and "consent" in card
    assert "recordings of at most" not in card
