"""Boards of speech synthesis, end to end: list and judges from a stand-in Hub or copies, with tiny judges."""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from speaking import RATE

from published_judges import random_weights, tiny_paraformer
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.cli import main
from stentor.commands.evaluate.speech_rows import SpeechRows
from stentor.errors import ConfigError
from stentor.inference.evaluators.by_language import ByLanguage
from stentor.sources.speech_boards import speech_boards
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator, evaluate_clips
from stentor.text.protocols import NORMALIZERS

TEXTS = {"u1": "One two.", "u2": "Two, one!", "u3": "Ok, yes."}
DATA, MODELS = "k2-fsa/TTS_eval_datasets", "k2-fsa/TTS_eval_models"


@pytest.fixture(scope="module")
def published(tmp_path_factory, recognizer) -> Path:
    """What lies on the Hub, by repository: the English list with its audio in an archive, whose paths are OmniVoice's;
    a recogniser and judges as files of torch, as they are published."""
    import torch
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("published")
    prompts = tmp_path_factory.mktemp("archive") / "seedtts_testset" / "en" / "prompt-wavs"
    write(prompts / "p1.wav", say("this is how i speak every day", "en-us+m3").audio, RATE)
    lines = [
        {"id": name, "text": text, "ref_text": "this is how i speak every day", "language_id": "en"}
        | {"ref_audio": "download/tts_eval_datasets/seedtts_testset/en/prompt-wavs/p1.wav"}
        for name, text in TEXTS.items()
    ]
    (folder / DATA).mkdir(parents=True)
    (folder / DATA / "seedtts_test_en.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with tarfile.open(folder / DATA / "seedtts_testset.tar.gz", "w:gz") as tar:
        tar.add(prompts.parents[1], "seedtts_testset")
    heard = folder / MODELS / "wer" / "whisper-large-v3"
    shutil.copytree(recognizer, heard, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(recognizer / "model.safetensors"), heard / "pytorch_model.bin")
    torch.save({"epochs": 3}, heard / "training_args.bin")  # as the Trainer leaves it there
    for board in speech_boards()["seedtts_en"].judges:
        path = folder / MODELS / board.path
        path.parent.mkdir(parents=True)
        weights = random_weights(board.section["type"])
        torch.save({"model": weights} if path.suffix == ".pth" else weights, path)
    return folder


@pytest.fixture
def copies(published, tmp_path, monkeypatch) -> Path:
    """The repositories as a folder COPIES/OWNER/NAME that a test may change."""
    monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "cache"))
    shutil.copytree(published, tmp_path / "copies", dirs_exist_ok=True)
    return tmp_path / "copies"


def figures(out: Path) -> dict:
    """What must be the same whoever fetched the board."""
    scores = json.loads(out.read_text("utf-8"))
    scores["eval"].pop("real_time_factor", None)
    return {"eval": scores["eval"], "board": scores["board"]}


@pytest.mark.long
def test_a_board_from_the_hub_to_its_table_and_again_without_a_network(hub, published, model, copies, tmp_path, capsys):
    from huggingface_hub import HfApi

    for name, kind in ((DATA, "dataset"), (MODELS, "model")):
        hub.organizations["k2-fsa"] = "write"
        HfApi(token=hub.token).create_repo(name, repo_type=kind)
        HfApi(token=hub.token).upload_folder(repo_id=name, repo_type=kind, folder_path=published / name)
    out, board = tmp_path / "hub.json", ["--board", "seedtts_en"]
    assert main(["evaluate", str(model), *board, "--json", str(out), "--audio", str(tmp_path / "wavs")]) == 0
    printed = capsys.readouterr().out
    assert "Seed-TTS-eval, English: judges Whisper-large-v3, WavLM-large with ECAPA-TDNN, UTMOS22 strong" in printed
    assert "WER, mean over the items" in printed and "SIM-o" in printed and "normaliser seed_tts" in printed
    assert "Differs from published figures: number of items 3, published 1088" in printed
    facts = json.loads(out.read_text("utf-8"))
    assert facts["voices"] == {"reference": 3} and facts["list"]["name"] == "seedtts_test_en.jsonl"
    reports = facts["board"]["reports"]
    assert list(reports) == ["wer_mean", "similarity", "utmos"]
    assert {name: score["value"] for name, score in reports.items()} == {
        name: facts["eval"][name]["value"] for name in reports
    }
    assert not list(tmp_path.glob("*.part*"))
    # One command fills a folder; with it the same figures without a network.
    there, alone = tmp_path / "filled", tmp_path / "alone.json"
    assert main(["evaluate", *board, "--copies", str(there), "--fetch"]) == 0
    assert "seedtts_en is here:" in capsys.readouterr().out
    hub.pull()
    assert main(["evaluate", str(model), *board, "--copies", str(there), "--json", str(alone)]) == 0
    assert figures(alone) == figures(out)
    # Speech of any other system is scored the same way.
    files = tmp_path / "files.json"
    spoken = ["evaluate", "--audio-from", str(tmp_path / "wavs"), *board, "--copies", str(there), "--json", str(files)]
    assert main(spoken) == 0
    assert figures(files)["board"]["reports"].keys() == reports.keys()
    capsys.readouterr()
    assert main(["evaluate", str(model), "--board", "seedtts_zh", "--recognizer", str(model)]) == 2
    assert "give --copies with a folder that holds it" in capsys.readouterr().err


def test_a_killed_evaluation_resumes(model, copies, tmp_path, monkeypatch):
    monkeypatch.setattr("stentor.commands.evaluate.speech_rows.TOGETHER", 1)
    rows, spoken = SpeechRows.rows, []

    def killed_at_the_third(self, items):
        spoken.extend(item.cut.id for item in items)
        if len(spoken) == 3:
            raise KeyboardInterrupt
        return rows(self, items)

    command = ["evaluate", str(model), "--board", "seedtts_en", "--copies", str(copies), "--json"]
    monkeypatch.setattr(SpeechRows, "rows", killed_at_the_third)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        raise SystemExit(main([*command, str(tmp_path / "a.json")]))
    assert main([*command, str(tmp_path / "a.json")]) == 0
    assert spoken == ["u1", "u2", "u3", "u3"]
    monkeypatch.setattr(SpeechRows, "rows", rows)
    assert main([*command, str(tmp_path / "b.json")]) == 0
    assert figures(tmp_path / "a.json") == figures(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("gone", "code", "message"),
    [
        (f"{DATA}/seedtts_testset.tar.gz", 3, "or seedtts_testset.tar.gz: run `stentor evaluate --board"),
        (f"{DATA}/seedtts_test_en.jsonl", 3, "seedtts_test_en.jsonl or seedtts_testset/en/meta.lst"),
        (f"{MODELS}/mos", 3, "k2-fsa/TTS_eval_models has no mos/utmos22_strong_step7459_v1.pt"),
        (f"{MODELS}/wer/whisper-large-v3/config.json", 2, "config.json"),
    ],
)
def test_what_is_missing_is_named_before_any_work(model, copies, capsys, gone, code, message):
    path = copies / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["evaluate", str(model), "--board", "seedtts_en", "--copies", str(copies)]) == code
    assert message in capsys.readouterr().err


def test_a_reference_that_is_missing_is_named_with_its_line(model, copies, tmp_path, capsys):
    (copies / DATA / "seedtts_testset" / "en").mkdir(parents=True)  # unpacked beside the archive, and not whole
    assert main(["evaluate", str(model), "--board", "seedtts_en", "--copies", str(copies)]) == 3
    said = capsys.readouterr().err
    assert "seedtts_test_en.jsonl:1: the reference" in said and "seedtts_testset/en/prompt-wavs/p1.wav" in said


def test_a_damaged_archive_leaves_nothing_behind(model, copies, tmp_path, capsys):
    archive = copies / DATA / "seedtts_testset.tar.gz"
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    command = ["evaluate", str(model), "--board", "seedtts_en", "--copies", str(copies), "--limit", "1"]
    assert main(command) == 3
    assert "cannot be unpacked" in capsys.readouterr().err
    archive.write_bytes(whole)
    assert main(command) == 0
    assert "number of items 1, published 1088" in capsys.readouterr().out


def test_other_judges_and_part_of_the_list_are_named(model, copies, recognizer, capsys):
    shutil.rmtree(copies / MODELS / "wer")
    command = ["evaluate", str(model), "--board", "seedtts_en", "--copies", str(copies), "--limit", "2"]
    assert main([*command, "--recognizer", str(recognizer), "--normalizer", "none"]) == 0
    printed = capsys.readouterr().out
    assert f"judges {recognizer}, WavLM-large with ECAPA-TDNN, UTMOS22 strong learner; normaliser none." in printed
    names = (("recogniser", recognizer, "Whisper-large-v3"), ("normaliser", "none", "seed_tts"))
    for what, here, there in (*names, ("number of items", 2, 1088)):
        assert f"Differs from published figures: {what} {here}, published {there}" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--board", "seedtts_en:u1"], "seedtts_en is one list without parts"),
        (["--board", "seedtts_en", "--data", "x.jsonl"], "has a list of its own: leave out --data"),
        (["--board", "seedtts_en", "--tune"], "--board and --tune do not go together"),
        (["--board", "english", "--fetch"], "--fetch is for --board of speech synthesis"),
        (["--board", "seedtts_en", "--scoring", "open_asr"], "--scoring is for models that transcribe"),
    ],
)
def test_wrong_options(model, copies, capsys, arguments, message):
    assert main(["evaluate", str(model), *arguments, "--copies", str(copies)]) == 2
    assert message in capsys.readouterr().err


def test_paraformer_is_asked_for_before_anything_is_fetched(hub, model, monkeypatch, capsys):
    monkeypatch.setattr("stentor.errors.installed", lambda module: module != "sherpa_onnx")
    for board in ("seedtts_zh", "minimax", "fleurs"):
        assert main(["evaluate", str(model), "--board", board]) == 2
        assert "pip install 'stentor[judges]'" in capsys.readouterr().err
    assert not hub.requests


def test_every_board_can_be_asked_for():
    kinds = SpeechEvaluator.choices()
    for board in speech_boards().values():
        assert board.normalizer in NORMALIZERS and board.lists and board.reports and board.title
        for judge in (*board.recognizers.values(), *board.judges):
            section = SpeechEvaluator.model_validate({**judge.section, "from": judge.path})
            assert type(section) is kinds[judge.section["type"]]
            assert (section.gives == "text") == (judge in board.recognizers.values())


def test_each_language_has_its_recogniser():
    class Word(SpeechEvaluator):
        type: str = "word"
        word: str = ""
        gives = "text"

        def load(self, device="cpu"):
            return LoadedEvaluator(8000, lambda audios, languages: [f"{self.word} {len(a)}" for a in audios])

    judge = ByLanguage(languages={"zh": Word(word="zh")}, other=Word(word="other"))
    clips = [np.zeros(n, np.float32) for n in (8000, 16000, 8000, 8000)]
    texts = evaluate_clips(judge, clips, 16000, ["zh", "en", None, "zh"])
    assert texts == ["zh 4000", "other 8000", "other 4000", "zh 4000"]


@pytest.fixture
def paraformer(tmp_path) -> Path:
    """A folder of copies with Paraformer alone."""
    pytest.importorskip("sherpa_onnx", reason="needs the extra `judges`: pip install 'stentor[judges]'")
    folder = tmp_path / "copies" / speech_boards()["seedtts_zh"].recognizers["other"].hub
    folder.mkdir(parents=True)
    return tiny_paraformer(folder)


def test_paraformer_runs_in_sherpa_onnx(paraformer):
    judge = SpeechEvaluator.model_validate({"type": "sherpa_onnx", "from": str(paraformer)})
    assert evaluate_clips(judge, [np.ones(16000, np.float32), np.ones(8000, np.float32)], 16000) == ["你好", "你好"]
    (paraformer / "tokens.txt").unlink()
    broken = SpeechEvaluator.model_validate({"type": "sherpa_onnx", "from": str(paraformer), "model": "omnilingual"})
    with pytest.raises(ConfigError, match=r"does not hold both a file \.onnx and tokens\.txt"):
        evaluate_clips(broken, [np.ones(16000, np.float32)], 16000)


def test_chinese_of_a_board_is_heard_by_paraformer(copies, paraformer, model, tmp_path):
    with tarfile.open(copies / DATA / "seedtts_testset.tar.gz") as tar:
        tar.extractall(copies / DATA / "minimax_multilingual_24", filter="data")
    lines = [("zh1", "你好", "zh"), ("en1", "One.", "en"), ("zh2", "你好吗", "zh")]
    prompt = {"ref_text": "one two", "ref_audio": "minimax_multilingual_24/seedtts_testset/en/prompt-wavs/p1.wav"}
    rows = [{"id": name, "text": text, "language_id": code, **prompt} for name, text, code in lines]
    listed = copies / DATA / "minimax_multilingual_24.jsonl"
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("zh1", "en1", "zh2"):
        write(tmp_path / "wavs" / f"{name}.wav", say("one two", "en-us").audio, RATE)
    out = tmp_path / "minimax.json"
    command = ["evaluate", "--audio-from", tmp_path / "wavs", "--board", "minimax", "--copies", copies, "--json", out]
    assert main([str(part) for part in command]) == 0
    scores = json.loads(out.read_text("utf-8"))
    assert scores["by"]["language"]["zh"]["wer"]["value"] == 1 / 5, "你好 is heard in both"
    assert list(scores["board"]["reports"]) == ["wer_macro", "similarity_macro"]
    assert scores["board"]["reports"]["wer_macro"]["value"] == scores["eval"]["wer_macro"]["value"]
