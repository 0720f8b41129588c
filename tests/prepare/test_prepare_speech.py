"""`stentor prepare speech` as a user runs it: texts become records whose audio says them, at the levels asked for."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from speaking import make_model, voiced

from stentor.audio.io import read, write
from stentor.cli import main
from stentor.commands.prepare.speech.worker import unread_script
from stentor.config.load import parse_source
from stentor.data.cut import text_of, words_of
from stentor.data.load_audio import load_audio

TEXTS = ["the lamp is on", "turn it off", "good morning, everybody!", "one two three"]
EAR = '''
from typing import ClassVar, Literal
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

class Ear(SpeechEvaluator):
    """Understands what is longer than a second and a half, and nothing else, as `turn it off`."""
    type: Literal["test_ear"] = "test_ear"
    gives: ClassVar = "text"
    def load(self, device="cpu"):
        return LoadedEvaluator(16000, lambda clips, languages: [
            "good morning every body" if len(clip) > 24000 else "turn it off" for clip in clips])
'''


@pytest.fixture
def texts(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture
def speech(tmp_path, attempt):
    """Runs `stentor prepare speech ...` into a folder, which must end with a code; answers the folder."""

    def run(name: str, *arguments: object, code: int = 0, says: str = "") -> Path:
        got, written = attempt("prepare", "speech", *arguments, "--to", tmp_path / name)
        assert got == code and says in written, written
        return tmp_path / name

    return run


@pytest.fixture
def ear(tmp_path):
    """A plug-in with a recogniser; answers the options that use it."""
    from stentor.tasks.speak.evaluator import SpeechEvaluator

    known = dict(SpeechEvaluator.choices())
    (tmp_path / "ear.py").write_text(EAR)
    yield ["--plugin", tmp_path / "ear.py", "--recognizer", "test_ear"]
    SpeechEvaluator._choices.clear()
    SpeechEvaluator._choices.update(known)


@pytest.fixture(scope="module")
def talker(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("talker") / "model")


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> Path:
    """A language model of random weights, which writes short nonsense."""
    import torch

    from stentor.models.base import Family, TaskRequirements

    torch.manual_seed(0)
    section = {"type": "transformer", "kind": "decoder", "shared": {"d_model": 16, "layers": 1, "heads": 2}}
    family = Family.model_validate(section)
    bundle = family.build(TaskRequirements("language", ("text",), lambda: iter(["one two", "three"])))
    torch.nn.init.normal_(bundle.model.text_head.weight)
    folder = tmp_path_factory.mktemp("writer")
    state = bundle.model.state_dict()
    family.save(bundle, {n: state[n] for n in family.exported_tensor_names(bundle)}, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "language"}, "model": section}))
    return folder


def lines(folder: Path, name: str = "manifest.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def audio(folder: Path, record: dict) -> np.ndarray:
    return read(folder / record["audio_path"])


def decibels(audio: np.ndarray) -> float:
    return 10 * np.log10(np.mean(np.square(audio, dtype=np.float64)))


def test_texts_become_records_that_load(texts, speech):
    folder = speech("a", texts, "--voices", "part=train,count=3", "--round", 2, says="0.00 hours")
    records = lines(folder)
    assert [r["text"] for r in records] == TEXTS
    assert all((r["label_source"], r["round"], r["labelled_by"]) == ("synthetic", 2, [r["voice"]]) for r in records)
    assert len({r["speaker"] for r in records}) == 3 and all(r["language"] == "en" for r in records)
    cuts = list(parse_source(str(folder / "manifest.jsonl")).cuts())
    for cut, record in zip(cuts, records, strict=True):
        loaded = load_audio(cut)
        assert len(loaded) / 16000 == pytest.approx(record["duration"], abs=1e-4) and np.abs(loaded).max() > 0.1
        words = words_of(cut)
        assert " ".join(w["word"] for w in words) == text_of(cut)
        # The words lie where the sound is: nothing sounds before the first and long after the last.
        assert np.abs(loaded[: round(16000 * (words[0]["start"] - 0.01))]).max() < 0.02
        assert decibels(loaded[round(16000 * words[0]["start"]) : round(16000 * words[-1]["end"])]) > -40
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["records"], summary["speakers"], summary["rejected"]) == (4, 3, {})
    assert lines(folder, "rejects.jsonl") == []
    speech("a", texts, "--voices", "part=train,count=3", "--round", 2, says="is already complete")
    speech("a", texts, "--seed", 1, code=2, says="has speech of other settings: give another folder as --to")


def test_the_same_for_any_number_of_processes(texts, speech):
    command = [texts, "--count", 40, "--augment", "noise.builtin=[pink],reverb.p=0.5,speed=[0.9,1.1]"]
    assert files(speech("one", *command)) == files(speech("two", *command, "--jobs", 2))
    spoken = [r["text"] for r in lines(speech("one", *command))]
    assert {spoken.count(text) for text in TEXTS} == {10}
    other = lines(speech("other", *command, "--seed", 1))
    assert [(r["text"], r["voice"]) for r in other] != [(r["text"], r["voice"]) for r in lines(speech("one", *command))]


def test_levels(texts, speech):
    """Silence is silent, noise is as loud as asked, nothing is clipped."""
    around = "silence=[0.5,0.5]"
    clean = speech("clean", texts, "--augment", around)
    noisy = speech("noisy", texts, "--augment", f"{around},noise={{builtin: [white], snr: [12, 12], p: 1}}")
    loud = speech("loud", texts, "--augment", f"{around},gain=[40,40]")
    bare = speech("bare", texts, "--augment", "silence=null")
    for a, b, c, d in zip(lines(clean), lines(noisy), lines(loud), lines(bare), strict=True):
        dry, wet, clipped = audio(clean, a), audio(noisy, b), audio(loud, c)
        assert not dry[:8000].any() and not dry[-8000:].any()
        assert a["duration"] == pytest.approx(d["duration"] + 1.0, abs=2e-4)
        gain = float(dry @ wet / (dry @ dry))  # under 1 where the peak would have been too high
        assert decibels(gain * dry) - decibels(wet - gain * dry) == pytest.approx(12, abs=0.3)
        assert decibels(wet[:8000]) > -60
        assert np.abs(wet).max() < 0.99 and np.abs(clipped).max() == pytest.approx(0.98, abs=0.001)
        assert np.count_nonzero(np.abs(clipped) > 0.979) < 5


def test_speed_moves_the_words_along(texts, speech):
    plain = lines(speech("plain", texts, "--augment", "silence=[0.2,0.2]"))
    fast = lines(speech("fast", texts, "--augment", "silence=[0.2,0.2],speed=[1.25]"))
    for a, b in zip(plain, fast, strict=True):
        assert b["duration"] - 0.4 == pytest.approx((a["duration"] - 0.4) / 1.25, abs=1e-3)
        assert b["words"][-1]["end"] - 0.2 == pytest.approx((a["words"][-1]["end"] - 0.2) / 1.25, abs=1e-3)


def test_texts_of_a_test_set_are_left_out(texts, speech, tmp_path):
    (tmp_path / "test.jsonl").write_text(
        json.dumps({"audio_path": "none.wav", "duration": 1, "text": "Turn it OFF."}) + "\n"
    )
    write(tmp_path / "none.wav", np.zeros(16000, np.float32), 16000)
    folder = speech("a", texts, "--exclude", tmp_path / "test.jsonl", says="held_out")
    assert [r["text"] for r in lines(folder)] == [t for t in TEXTS if t != "turn it off"]
    (reject,) = lines(folder, "rejects.jsonl")
    assert (reject["text"], reject["reason"]) == ("turn it off", "held_out")
    everything = f"type=text,texts={json.dumps(TEXTS)}"
    kept = lines(speech("c", "type=synth,texts=commands,count=6,voices=[en-us],where={speaker: en-us}"))
    assert len(kept) == 6 and {r["voice"] for r in kept} == {"en-us"}
    speech("b", texts, "--exclude", everything, code=3, says="none of 4 texts is left")


def test_a_recogniser_judges(texts, speech, ear):
    """Two of four are heard: one to the letter, and one with two words in the place of one."""
    command = [texts, *ear, "--voice", "en-us", "--augment", "silence=[0.1,0.1]", "--device", "cpu"]
    folder = speech("a", *command, "--max-wer", 0.7, says="wer")
    kept = {r["text"]: r for r in lines(folder)}
    rejected = {r["text"]: r for r in lines(folder, "rejects.jsonl")}
    assert kept.keys() == {"turn it off", "good morning, everybody!"}
    assert kept["turn it off"]["confidence"] == 1 and kept["turn it off"]["recognized"] == "turn it off"
    assert kept["good morning, everybody!"]["wer"] == pytest.approx(2 / 3, abs=1e-4)
    assert kept["good morning, everybody!"]["confidence"] == pytest.approx(1 / 3, abs=1e-4)
    reject = rejected["the lamp is on"]
    assert (reject["reason"], reject["value"], reject["threshold"]) == ("wer", 1.0, 0.7)
    assert reject["recognized"] == "turn it off" and reject["confidence"] == 0
    assert (folder / reject["audio_path"]).is_file()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rejected"] == {"wer": 2} and summary["wer"] == pytest.approx((0 + 2 / 3 + 1 + 1) / 4, abs=1e-3)
    strict = speech("b", *command, "--max-wer", 0)
    assert [r["text"] for r in lines(strict)] == ["turn it off"]
    speech("c", "type=text,texts=[no]", *ear, "--device", "cpu", code=3, says="No utterance was kept")


def test_it_goes_on_after_a_signal_and_after_a_cut_journal(speech, monkeypatch, attempt, tmp_path):
    from stentor.commands.prepare.speech import command as verb

    command = ["type=synth,texts=digits,count=40,voices={count: 8}", "--augment", "noise.builtin=[white]"]
    whole = speech("whole", *command)
    real = verb.SpeechWorker.process

    def stopped(self, group):
        if group[0].index == 16:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, group)

    monkeypatch.setattr(verb.SpeechWorker, "process", stopped)
    folder = speech("parts", *command, code=75, says="16 of 40 utterances are in")
    assert not (folder / "manifest.jsonl").exists()
    monkeypatch.setattr(verb.SpeechWorker, "process", real)
    journal = folder / "manifest.jsonl.part"
    journal.write_bytes(journal.read_bytes()[:-20])  # as a kill in the middle of a line leaves it
    speech("parts", *command, "--seed", 3, code=2, says="is from a command with other settings")
    speech("parts", *command, says="15 of 40 utterances are already done")
    assert files(folder) == files(whole)


def test_a_model_speaks_in_voices_and_by_instruct(talker, texts, speech, here, tmp_path):
    saved = tmp_path / "anna"
    for name, pitch in (("one", 120), ("two", 200)):
        write(tmp_path / f"{name}.wav", 0.2 * voiced(1.5, pitch), 16000)
    here("speak", talker, "--reference", tmp_path / "one.wav", "--reference-text", "one", "--save-voice", saved)
    references = tmp_path / "references.jsonl"
    recordings = [{"audio_path": f"{name}.wav", "text": name, "speaker": f"s-{name}"} for name in ("one", "two")]
    references.write_text("".join(json.dumps({**r, "id": r["text"]}) + "\n" for r in recordings))
    model = ["--model", talker, "--device", "cpu", "--steps", 2]
    folder = speech("a", texts, *model, "--voice", saved, "--references", references, "--instruct", "a deep voice")
    records = lines(folder)
    assert {(r["voice"], r["speaker"]) for r in records} == {
        ("anna", "anna"),
        ("one", "s-one"),
        ("two", "s-two"),
        ("a deep voice", "a deep voice"),
    }
    assert all(r["labelled_by"] == [str(talker)] and r["label_source"] == "synthetic" for r in records)
    assert all(audio(folder, r).any() and "words" not in r for r in records)
    assert len(list((folder / "references").iterdir())) == 2
    other = speech("b", texts, *model, "--voice", saved, "--references", references, "--instruct", "a deep voice")
    assert {p: c for p, c in files(folder).items() if p.startswith("audio")} == {
        p: c for p, c in files(other).items() if p.startswith("audio")
    }
    speech("d", texts, *model, "--voice", "nobody", code=2, says="nobody")
    unknown = speech("c", "type=text,texts=[one,ωψ]", *model, code=3, says="1 of 2 records cannot be used")
    assert [r["text"] for r in lines(unknown)] == ["one"]  # what could be made is there
    (reject,) = lines(unknown, "rejects.jsonl")
    assert reject["reason"] == "not_spoken" and "knows none of its letters" in reject["message"]


def test_a_language_model_writes_the_texts(writer, speech):
    command = ["--language-model", writer, "--count", 12, "--device", "cpu", "--temperature", 1.2]
    folder = speech("a", *command)
    written = [line["text"] for line in lines(folder, "texts.jsonl")[1:]]
    records = {r["text"] for r in lines(folder)} | {r.get("text") for r in lines(folder, "rejects.jsonl")}
    assert len(set(written)) == 12 and records >= set(written) - {None}
    assert [line["text"] for line in lines(speech("b", *command), "texts.jsonl")[1:]] == written


def test_texts_of_a_hub_data_set_without_audio_in_their_language(speech, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("datasets")
    import pyarrow

    (tmp_path / "set").mkdir()
    table = pyarrow.table({"sentence": ["habari ya asubuhi", "", "asante sana"]})
    parquet.write_table(table, tmp_path / "set" / "train-00000-of-00001.parquet")
    folder = speech("a", f"type=hub,name={tmp_path}/set", "--language", "sw", "--voices", "count=2")
    records = lines(folder)
    assert [r["text"] for r in records] == ["habari ya asubuhi", "asante sana"]
    assert {r["language"] for r in records} == {"sw"} and all(r["voice"].startswith("sw+") for r in records)
    assert [r["reason"] for r in lines(folder, "rejects.jsonl")] == ["empty_text"]


def test_the_seed_draws_other_texts_of_a_generator(speech):
    spec = "type=synth,texts=digits,count=8,voices=[en-us]"
    a, b = (lines(speech(f"seed{seed}", spec, "--seed", seed)) for seed in (0, 1))
    assert [r["text"] for r in a] != [r["text"] for r in b] and not {r["id"] for r in a} & {r["id"] for r in b}


def test_each_text_is_spoken_in_its_language(speech, tmp_path):
    rows = [("guten Tag", "de"), ("good day", "en"), ("\u4f60\u597d", "zh"), ("bis morgen", "de"), ("see you", "en")]
    write(tmp_path / "a.wav", np.zeros(1600, np.float32), 16000)
    records = [{"audio_path": "a.wav", "id": f"r{i}", "text": t, "language": c} for i, (t, c) in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    spoken = lines(speech("a", tmp_path / "rows.jsonl"))
    assert [(r["text"], r["language"]) for r in spoken] == rows
    accents = [r["voice"].partition("+")[0] for r in spoken]
    assert (accents[0], accents[2], accents[3]) == ("de", "cmn", "de")
    assert accents[1].startswith("en") and accents[4].startswith("en")


def test_languages(speech):
    (record,) = lines(speech("a", "type=text,texts=[guten Tag],language=de"))
    assert (record["language"], record["voice"].partition("+")[0]) == ("de", "de")
    speech("b", "type=text,texts=[guten Tag],language=de", "--voice", "en-us", code=2, says="--voices accents=[de]")


def test_texts_in_a_script_that_the_voice_does_not_read_are_rejected(speech):
    texts = "type=text,texts=[привет мир, one two, 'over α', пока]"
    folder = speech("a", texts, "--voice", "en-us", code=3, says="2 of 4 records cannot be used")
    assert [r["text"] for r in lines(folder)] == ["one two", "over α"]
    first, second = lines(folder, "rejects.jsonl")
    assert first["reason"] == second["reason"] == "script"
    assert "the voice en-us does not read Cyrillic letters ('привет мир'): name the texts' language" in first["message"]
    assert len(lines(speech("b", texts, "--language", "ru", "--voices", "count=1"))) == 4


@pytest.mark.parametrize(
    ("text", "language", "script"),
    [
        ("привет", "en", "Cyrillic"),
        ("привет", "uk", None),
        ("Zoë, ＯＫ 42!", "de", None),
        ("42", "en", None),
        ("東京 タワー", "ja", None),
        ("東京都庁", "ja", "CJK"),
        ("東京都庁", "zh", None),
        ("hello", "ja", None),
        ("नमस्ते दुनिया", "hi", None),
        ("नमस्ते दुनिया", "en", "Devanagari"),
    ],
)
def test_scripts(text, language, script):
    assert unread_script(text, language) == script


def test_texts_that_are_not_utf8_are_named_each_time(speech, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"one two\ncaf\xe9\n")
    for _ in range(2):  # what could be made is there the second time, and the rest is still not
        folder = speech("out", tmp_path / "latin.txt", code=3, says="latin.txt:2: not UTF-8 text")
    assert len(lines(folder)) == 1
    speech("other", tmp_path / "latin.txt", "--exclude", tmp_path / "latin.txt", code=3, says="1 of 2 records")


def test_a_mistake_that_cost_nothing_leaves_nothing_in_the_way(speech):
    command = ["type=text,texts=[one]"]
    speech("out", *command, "--recognizer", "none", code=2, says="There is no model none")
    speech("out", *command)


STEP = """\
prepare:
  - type: speech
    to: spoken
    data: {type: synth, texts: {kind: digits, words: [1, 2]}, count: 12, voices: {part: train, count: 4}}
    augment: {silence: [0.2, 0.4], noise: {builtin: [pink, white], snr: [10, 20]}}
    exclude: [{type: text, texts: [zero]}]
    round: 1
"""


def test_a_step_of_a_run(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tiny()
    path.write_text(path.read_text() + STEP)
    assert main(["prepare", "run", str(path)]) == 0
    assert "Preparing spoken (speech, 1 of 1)" in capsys.readouterr().out
    records = lines(tmp_path / "spoken")
    assert records and all(r["round"] == 1 and r["text"] != "zero" for r in records)
    assert main(["prepare", "run", str(path), "prepare.0.jobs=2"]) == 0
    assert "Preparing" not in capsys.readouterr().out
