"""`stentor prepare labels`: with a recogniser whose errors are known, what is kept, what is said of it, and why the
rest is not; also killed, from shards, as a step, and with a real model."""

import json
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from stentor.audio.io import read, write
from stentor.cli import main
from stentor.models.encoders import cache
from stentor.sources.manifest import Jsonl

RECOGNISER = '''
"""A recogniser that makes errors in words of its own by the record: more of them where it is less sure, but it is too
sure. It reads the name of the recording, so that no audio is needed."""
import math
import random

from stentor.inference.transcribe import Transcript

WORDS = "harbour light boat storm monday bridge river summer island valley morning garden telephone sea north".split()


def truth(name):
    return random.Random(name).choices(WORDS, k=12)


def error(name):
    return random.Random(name + "error").uniform(0.0, 0.6)


def transcript(name, model, speed):
    lot = random.Random(f"{name}{model.rsplit('/', 1)[-1]}{speed}")  # not by the folder, which is another in each run
    words = [w if lot.random() > error(name) else lot.choice(WORDS).upper() + "x" for w in truth(name)]
    if name.startswith("loop"):
        words = ["again"] * 12
    if name.startswith("quiet"):
        words = []
    sure = [1 - 0.5 * error(name) * lot.random() for _ in words]
    tokens = [{"token": " " * (i > 0) + w, "logprob": math.log(p)} for i, (w, p) in enumerate(zip(words, sure))]
    text = " ".join(words)
    part = {"start": 0.0, "end": 3.0, "text": text, "log_prob": -0.1, "tokens": tokens}
    return Transcript(text=text, language="en", segments=[part] if words else [])


def transcribed(model, device, work, batch_seconds, speed=1.0, decoding=None, tokens=False):
    return [transcript(recording.name, model, speed) for recording, segments in work for _ in segments]
'''


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def module() -> dict:
    names: dict = {}
    exec(RECOGNISER, names)
    return names


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the recogniser, two models' folders, 60 labelled and 120 other clips of 3 s in one file each."""
    folder = tmp_path_factory.mktemp("labels")
    for model in ("good", "other"):
        (folder / model).mkdir()
        (folder / model / "config.json").write_text("{}")
    truth = module()["truth"]
    write(folder / "sound.flac", np.random.default_rng(0).normal(0, 0.1, 48000).astype(np.float32), 16000)
    for name, ids in {
        "labelled": [f"known{i}" for i in range(60)],
        "data": [*(f"clip{i}" for i in range(118)), "loop", "quiet"],
        "quiet": [f"quiet{i}" for i in range(30)],
    }.items():
        clip = {"audio_path": "sound.flac", "duration": 3.0}
        lines = [{"id": i, **clip, "text": " ".join(truth(i))} for i in ids]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def run(place: Path, to: Path, *options: object, data: object = None) -> int:
    """The exit code of the command in this process, with the first model and without stages."""
    command = ["prepare", "labels", data or place / "data.jsonl", "--to", to, "--stage", "none", "--device", "cpu"]
    return main([*map(str, [*command, "--model", place / "good", *options])])


def labels(place: Path, to: Path, *options: object, code: int = 0, labelled: bool = True) -> tuple[list, list, dict]:
    """(records, rejects, summary) of the command."""
    assert run(place, to, *(["--labelled", place / "labelled.jsonl"] if labelled else []), *options) == code
    return rows(to / "manifest.jsonl"), rows(to / "rejects.jsonl"), json.loads((to / "summary.json").read_text())


@pytest.fixture
def recogniser(monkeypatch):
    import stentor.inference.segments.label as label

    monkeypatch.setattr(label, "transcribed", module()["transcribed"])
    bundle = SimpleNamespace(cache_encoder=nullcontext)
    monkeypatch.setattr(label, "loaded", lambda *_: SimpleNamespace(for_transcription=lambda: None, bundle=bundle))


THREE = ("--decoding", "beams=1", "--decoding", "speed=0.9", "--decoding", "speed=1.1")


def true_error(place: Path, records: list[dict]) -> float:
    from stentor.metrics.wer import score

    texts = {r["id"]: r["text"] for r in rows(place / "data.jsonl")}
    return score([texts[r["recording"]] for r in records], [r["text"] for r in records]).value


def test_what_is_kept_has_the_error_that_was_wished_for(place, tmp_path, recogniser, capsys):
    kept, rejects, summary = labels(place, tmp_path / "a", *THREE, "--max-error", 0.1, "--round", 2)
    assert len(kept) + len(rejects) == 120 and 20 < len(kept) < 100
    chosen = summary["selection"]
    error = true_error(place, kept)
    assert error < 0.1 and abs(error - chosen["expected_error"]) < 0.03 and chosen["upper"] <= 0.1
    reasons = {r["recording"]: r["reason"] for r in rejects}
    assert reasons["loop"] == "loop" and reasons["quiet"] == "no_text"
    low = [r for r in rejects if r["reason"] == "low_confidence"]
    assert set(reasons.values()) <= {"loop", "no_text", "low_confidence", "too_fast", "too_slow"}
    assert len(rejects) - 8 < len(low) < len(rejects) and all(
        r["value"] < r["threshold"] == chosen["min_confidence"] for r in low
    )
    assert true_error(place, low) > 2 * error
    for record in kept:
        assert (record["label_source"], record["round"], record["labelled_by"]) == ("pseudo", 2, [str(place / "good")])
        assert record["confidence"] >= chosen["min_confidence"] and record["duration"] == 3.0 and record["start"] == 0
        assert [h.get("speed", 1.0) for h in record["hypotheses"]] == [1.0, 0.9, 1.1]
        assert all(h["text"] and 0 <= h["wer"] <= 1 and 0 < h["confidence"] < 1 for h in record["hypotheses"])
        assert "signs" not in record
    # Calibrated: what is said of all of them together is true of all of them together.
    sure = [*kept, *low]
    expected = 1 - sum(r["confidence"] for r in sure) / len(sure)
    assert expected == pytest.approx(true_error(place, sure), abs=0.03)
    assert chosen["calibrated"] and 55 < chosen["labelled_records"] <= 60
    assert chosen["labelled_words"] == 12 * chosen["labelled_records"]
    assert summary["hours"] == pytest.approx(len(kept) * 3 / 3600, abs=1e-5)
    text = capsys.readouterr().out
    assert "An error of 10 % allows" in text and "What" in text and "was trained on is not known" in text
    page = (tmp_path / "a" / "corpus.html").read_text("utf-8")
    assert "What a threshold costs" in page and "An error of 10 % allows" in page and "low_confidence" in page
    assert [cut.id for cut in Jsonl(path=tmp_path / "a" / "manifest.jsonl").cuts()] == [r["id"] for r in kept]
    labels(place, tmp_path / "a", *THREE, "--max-error", 0.1, "--round", 2)
    assert "is already complete" in capsys.readouterr().out


@pytest.mark.long
def test_a_draw_of_equal_hours_is_worse_and_a_vote_is_better(place, tmp_path, recogniser):
    kept, _, summary = labels(place, tmp_path / "a", *THREE)
    drawn, rejects, same = labels(place, tmp_path / "b", *THREE, "--select", "random")
    assert abs(len(drawn) - len(kept)) <= 1 and same["selection"]["by"] == "random"
    assert {"not_drawn", "loop", "no_text"} <= {r["reason"] for r in rejects}
    assert not any(r["reason"] == "low_confidence" for r in rejects)
    assert true_error(place, drawn) > 1.5 * true_error(place, kept)
    alone, _, one = labels(place, tmp_path / "c")
    assert one["selection"]["kept_share"] < summary["selection"]["kept_share"]
    assert one["selection"]["labelled_error"] > 1.3 * summary["selection"]["labelled_error"]
    assert all(len(r["hypotheses"]) == 1 and r["agreement"] == 1 for r in alone)


def test_hours_bound_what_is_kept_and_are_named(place, tmp_path, recogniser, capsys):
    kept, _, summary = labels(place, tmp_path / "a", "--max-error", 1, "--hours", 0.05)
    assert 0 < len(kept) * 3 <= 180 and "in 0.05 hours allows" in summary["selection"]["notes"][0]
    labels(place, tmp_path / "b", "--max-error", 1, "--hours", 1e-5, code=3)
    assert "The surest labels last longer than 1e-05 hours" in capsys.readouterr().err


def test_labelled_records_pass_the_same_filters_as_the_data(place, tmp_path, recogniser):
    """By calibrated confidences, and the pace as well: of the same records the same ones are left to choose from."""
    same = ["--labelled", place / "data.jsonl", "--filter", "hallucinations,min_confidence=0.75"]
    kept, rejects, summary = labels(place, tmp_path / "a", *same, "--max-error", 0.3)
    left = len(kept) + sum(r["reason"] == "low_confidence" for r in rejects)
    assert summary["selection"]["labelled_records"] == left < 100 and "unsure_text" in {r["reason"] for r in rejects}


def test_two_models(place, tmp_path, recogniser):
    kept, _, summary = labels(place, tmp_path / "a", "--model", place / "other", "--max-error", 0.3)
    names = [str(place / name) for name in ("good", "other")]
    assert kept and all(r["labelled_by"] == names == [h["model"] for h in r["hypotheses"]] for r in kept)
    assert {len({h["text"] for h in r["hypotheses"]}) for r in kept} == {1, 2}
    assert sum("was trained on is not known" in note for note in summary["selection"]["notes"]) == 2


def test_an_error_that_cannot_be_had(place, tmp_path, recogniser, capsys):
    kept, rejects, summary = labels(place, tmp_path / "a", "--max-error", 0.0001, code=3)
    assert not kept and len(rejects) == 120 and summary["selection"]["min_confidence"] is None
    message = " ".join(capsys.readouterr().err.split())
    assert "No label was kept" in message and "No threshold keeps an error of 0.01 %" in message
    labels(place, tmp_path / "a", "--max-error", 0.0001, code=3)  # that it was made before makes it no better


def test_without_labelled_records_it_says_what_it_does_not_know(place, tmp_path, recogniser, capsys):
    kept, _, summary = labels(place, tmp_path / "a", labelled=False)
    assert summary["selection"]["calibrated"] is False and "--labelled measures them" in capsys.readouterr().out
    assert true_error(place, kept) > 0.1  # the models are too sure
    assert summary["selection"]["expected_error"] <= 0.1


def test_labelled_records_that_a_model_was_trained_on(place, tmp_path, recogniser, capsys):
    known = tmp_path / "trained"
    known.mkdir()
    (known / "config.json").write_text("{}")
    config = {"model": {"type": "transformer"}, "task": {"type": "transcribe"}}
    config["data"] = {"train": [{"type": "jsonl", "path": str(place / "labelled.jsonl"), "limit": 30}]}
    (known / "training_config.json").write_text(json.dumps(config))
    _, _, summary = labels(place, tmp_path / "a", "--model", known, "--max-error", 0.4)
    notes = " ".join(summary["selection"]["notes"])
    assert "labelled shares with the training data: " in notes and "30 of 60 ids" in notes
    assert "the error of what is kept is higher than it says here" in notes


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--select", "best"], 2, "--select must be confidence or random, not 'best'"),
        (["--decoding", "beam=4"], 2, "did you mean 'beams'"),
        (["--decoding", "speed=5"], 2, "speed"),
        (["--filter", "hallucination"], 2, "unknown type 'hallucination'"),
        (["--hours", 0], 2, "hours"),
        (["--labelled", "{place}/labelled.jsonl,limit=10"], 3, "10 of 10 records of --labelled have a text"),
        (["--labelled", "{place}/nothing.jsonl"], 3, "nothing.jsonl"),
        (
            ["--labelled", "{place}/quiet.jsonl"],
            3,
            "30 labelled records 0 got a label that passes the filters (no_text: 30",
        ),
        (["--to", "{place}/data.jsonl"], 2, "data.jsonl is a file: give a folder as --to"),
    ],
)
def test_mistakes(place, tmp_path, recogniser, capsys, options, code, message):
    assert run(place, tmp_path / "x", *(str(option).format(place=place) for option in options)) == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_manifest_that_it_did_not_make_stays(place, tmp_path, recogniser, capsys):
    mine = tmp_path / "mine" / "manifest.jsonl"
    mine.parent.mkdir()
    mine.write_bytes((place / "data.jsonl").read_bytes().replace(b"sound.flac", bytes(place / "sound.flac")))
    before = mine.read_bytes()
    speech = ["prepare", "speech", str(mine), "--to", str(mine.parent)]
    for command in (lambda: run(place, mine.parent, data=mine), lambda: main(speech)):
        assert command() == 2
        assert "already has a manifest.jsonl of another command" in capsys.readouterr().err
    assert mine.read_bytes() == before and list(mine.parent.iterdir()) == [mine]


def test_other_settings_and_other_data_are_refused(place, tmp_path, recogniser, capsys):
    labels(place, tmp_path / "a", "--max-error", 0.3)
    texts = tmp_path / "texts.jsonl"
    texts.write_text(
        (place / "labelled.jsonl").read_text().replace("harbour", "port").replace("sound", f"{place}/sound")
    )
    changes = [
        {"--max-error": "0.2"},
        {"--labelled": str(texts)},
        *({"data": f"{place}/data.jsonl,{key}"} for key in ("channel=0", "language=de", "max_hours=0.01")),
    ]
    usual = {"data": f"{place}/data.jsonl", "--labelled": f"{place}/labelled.jsonl", "--max-error": "0.3"}
    for change in changes:
        (_, data), *options = (usual | change).items()
        assert run(place, tmp_path / "a", *(word for option in options for word in option), data=data) == 2
        assert "has segments of other settings" in capsys.readouterr().err


def test_max_hours_of_the_data(place, tmp_path, recogniser):
    assert run(place, tmp_path / "a", "--max-error", 1, data=f"{place}/data.jsonl,max_hours=0.01") == 0
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["recordings"] == 12


def test_stopped_and_started_again_it_makes_the_same(place, tmp_path, recogniser, monkeypatch, capsys):
    """Among the labelled records, and among the others."""
    import stentor.inference.segments.label as label

    monkeypatch.setattr("stentor.commands.prepare.segments.command.MOST", 16)
    labels(place, tmp_path / "straight")
    real, calls = label.transcribed, []

    def stopping(*arguments, **options):
        calls.append(arguments)
        if len(calls) in (3, 8):
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments, **options)

    monkeypatch.setattr(label, "transcribed", stopping)
    stopped = tmp_path / "stopped"
    assert [run(place, stopped, "--labelled", place / "labelled.jsonl") for _ in range(3)] == [75, 75, 0]
    assert capsys.readouterr().out.count("are already done") == 4  # the labelled records twice
    for path in (tmp_path / "straight").iterdir():
        assert path.read_bytes() == (stopped / path.name).read_bytes()
    assert not list(stopped.glob("*.part"))


def test_from_shards_with_files_of_its_own(place, tmp_path, recogniser, capsys):
    """Segments cannot point into a tar file."""
    shards = tmp_path / "shards"
    assert main(["prepare", "tokens", str(place / "data.jsonl"), "--codec", "none", "--to", str(shards)]) == 0
    assert run(place, tmp_path / "a", "--max-error", 0.3, data=shards / "data.lst") == 3
    assert "take --audio" in capsys.readouterr().err
    assert run(place, tmp_path / "b", "--max-error", 0.3, "--audio", data=shards / "data.lst") == 0
    kept = rows(tmp_path / "b" / "manifest.jsonl")
    assert kept and all((tmp_path / "b" / r["audio_path"]).is_file() and "start" not in r for r in kept)
    assert all("audio_path" not in r and r["recording"] for r in rows(tmp_path / "b" / "rejects.jsonl"))


def test_as_a_step_of_a_run(place, tmp_path, recogniser, tiny, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tiny()
    path.write_text(
        path.read_text()
        + f"""
prepare:
  - type: labels
    data: {{type: jsonl, path: {place}/data.jsonl}}
    labelled: {{type: jsonl, path: {place}/labelled.jsonl}}
    to: labels
    models: [{place}/good, {place}/other]
    decodings: [{{}}, {{speed: 0.9}}]
    stages: []
    device: cpu
"""
    )
    assert main(["prepare", "run", str(path)]) == 0
    kept = rows(tmp_path / "labels" / "manifest.jsonl")
    assert kept and {len(r["hypotheses"]) for r in kept} == {4}
    summary = json.loads((tmp_path / "labels" / "summary.json").read_text())
    assert [s["name"] for s in summary["stages"]] == ["label", "hallucinations", "select"]
    capsys.readouterr()
    assert main(["prepare", "run", str(path)]) == 0
    assert "prepared: labels" in capsys.readouterr().out


@pytest.mark.long
def test_a_real_model_on_long_recordings(corpus, tmp_path, tiny, whisper, monkeypatch):
    """A model of a few steps: what counts is the way from recordings to records, and that nothing is lost."""
    assert main(["train", str(tiny()), "train.steps=40", "train.eval_every=40", "optim.lr=0.01", "name=tiny"]) == 0
    folder = tmp_path / "talks"
    folder.mkdir()
    pause = np.zeros(24000, np.float32)
    for name, part in {"a": slice(0, 4), "b": slice(4, 8)}.items():
        clips = [read(corpus / r["audio_path"]) for r in rows(corpus / "train.jsonl")[part]]
        write(folder / f"{name}.flac", np.concatenate([x for clip in clips for x in (clip, pause)]), 16000)
    model, to = tmp_path / "runs" / "tiny", tmp_path / "a"
    command = ["prepare", "labels", str(folder), "--to", str(to), "--model", str(model), "--max-error", "1"]
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(r["text"] for r in rows(corpus / "train.jsonl")))
    command += ["--decoding", f"language_model={texts},language_model_weight=0.01", "--decoding", "speed=1.1"]
    command += ["--filter", "none", "--device", "cpu"]
    assert main([*command, "--stage", "vad,seconds=[0.3,20]"]) == 0
    kept, lost = rows(to / "manifest.jsonl"), rows(to / "rejects.jsonl")
    assert len(kept) > 4 and all(r["text"] and 0 < r["confidence"] < 1 and 0 < r["agreement"] <= 1 for r in kept)
    assert {r["text"][0] for r in kept} <= set("otfsi") and len({r["start"] for r in kept}) > 3
    assert all([h.get("language_model") for h in r["hypotheses"]] == [str(texts), None] for r in kept)
    seconds = sum(r["duration"] for r in [*kept, *lost])
    summary = json.loads((to / "summary.json").read_text())
    assert seconds == pytest.approx(3600 * summary["recorded_hours"], abs=0.01)
    # A batch is encoded once, in however many ways it is decoded.
    counted: dict[str, list[int]] = {}
    real = cache.encode
    for ways in ("1", "1 2"):
        shapes = counted.setdefault(ways, [])
        monkeypatch.setattr(cache, "encode", lambda *a, shapes=shapes: shapes.append(len(a[2])) or real(*a))
        again = ["prepare", "labels", str(folder), "--to", str(tmp_path / f"ways-{len(ways)}"), "--model", str(model)]
        again += [word for beams in ways.split() for word in ("--decoding", f"beams={beams}")]
        assert main([*again, "--max-error", "1", "--filter", "none", "--device", "cpu"]) == 0
    assert counted["1"] == counted["1 2"] != []
    monkeypatch.setattr(cache, "encode", real)
    # Of a model that has learned nothing, nothing is kept.
    command[command.index(str(model))] = str(whisper)
    command[command.index(str(to))] = str(tmp_path / "b")
    command[command.index("--max-error") + 1] = "0.5"
    assert main([*command, "--stage", "none"]) == 3
    assert {r["reason"] for r in rows(tmp_path / "b" / "rejects.jsonl")} <= {"no_text", "low_confidence"}
