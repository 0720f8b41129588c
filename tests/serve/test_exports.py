"""Exports for onnxruntime and CTranslate2 as models: the answers of the torch model, in Python and to the unmodified
openai client; and folders that are no model of Stentor's, each with one sentence."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import openai
import pytest
import torch

import stentor
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.cli import main
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.base import Family, TaskRequirements
from tiny_configs import WHISPER

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))
recognisers = importlib.import_module("recognisers")
pytestmark = pytest.mark.slow
for package in ("onnx", "onnxscript", "onnxruntime", "ctranslate2"):
    pytest.importorskip(package)

FROZEN = Path(__file__).parents[1] / "frozen" / "exports" / "transducer" / "export"
TEXTS = ("one two three", "nine eight", "four")


def whisper(folder: Path) -> Path:
    """A Whisper with shaken weights, which writes something until it may not write more."""
    torch.manual_seed(0)
    config = {**WHISPER, "init_std": 0.02, "max_target_positions": 128}
    family = Family.model_validate({"type": "seq2seq", "config": config, "token_rate": 3.0})
    bundle = family.build(TaskRequirements("transcribe"))
    recognisers.shake(bundle, 0.4)
    first = bundle.processor.eos_id
    bundle.model.generation_config.begin_suppress_tokens = [first]
    bundle.model.generation_config.suppress_tokens = list(range(first + 1, bundle.model.config.vocab_size))
    return recognisers.save(bundle, folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models and exports of each, made by the command line."""
    at = tmp_path_factory.mktemp("exports")
    made = {
        "whisper": (whisper(at / "whisper"), ("ctranslate2",)),
        "transducer": (shutil.copytree(FROZEN, at / "transducer"), ("onnx",)),
        "ctc": (recognisers.save(recognisers.ctc("parakeet"), at / "ctc"), ("onnx",)),
        "wave": (recognisers.save(recognisers.ctc("wav2vec2_large"), at / "wave"), ("ctranslate2",)),
    }
    pairs = []
    for name, (model, formats) in made.items():
        for format in formats:
            to = at / f"{name}-{format}"
            assert main(["export", str(model), "--to", str(to), "--format", format, "--allow-difference"]) == 0
            pairs.append((model, to))
    return pairs


@pytest.fixture(scope="module")
def clips():
    return [Example(text, say(text).audio, text) for text in TEXTS]


def unchecked(folder):
    model = stentor.load(folder, "cpu")
    model.task.checks.on = False
    return model


def test_answers_are_those_of_torch(folders, clips):
    """Texts, probabilities, times and words of a batch; beams and hotwords where both search the same way."""
    for folder, export in folders:
        model, other = unchecked(folder), unchecked(export)
        assert other.bundle.capabilities == model.bundle.capabilities
        near = 0.1 if export.name == "ctc-onnx" else 2e-3  # in that graph, classes that write nothing are the blank
        ways = [{}]
        if "hotwords" in model.bundle.family.decoding_options():
            ways += [{"beams": 3}, {"hotwords": ["two nine"], "hotword_strength": 3.0}]
        for way in ways:
            ours, theirs = [m.task.model_copy(update=way).predict(m.bundle, clips) for m in (model, other)]
            for a, b in zip(ours, theirs, strict=True):
                assert a["text"] == b["text"] and abs(a["log_prob"] - b["log_prob"]) < near, (export, way)
                assert a.keys() == b.keys() and a.get("language") == b.get("language") and a.get("ctc") == b.get("ctc")
                assert [w["word"] for w in a["words"]] == [w["word"] for w in b["words"]]
                for one, two in zip(a["words"], b["words"]):
                    assert all(abs(one[key] - two[key]) < 5e-3 + near for key in one.keys() - {"word"})
        for answers in other.bundle.model.generate(
            other.bundle.processor.collate(clips, labels=False).inputs,
            [9] * len(clips),
            {other.bundle.processor.eos_id},
            beams=2,
            num_answers=2,
        ):
            assert 1 <= len(answers.alternatives) <= 2


def test_known_texts_are_aligned(folders, clips):
    from stentor.inference.align.engines import aligner_of, clip_of
    from stentor.inference.recording import open_recording

    for folder, export in folders:
        if "transducer" in folder.name:
            clip = clip_of(open_recording(clips[0].audio, 16000, 16000), TEXTS[0])
            ours, theirs = [aligner_of(unchecked(f)).align([clip])[0].words for f in (folder, export)]
            assert [w.word for w in theirs] == TEXTS[0].split()
            np.testing.assert_allclose([w.start for w in ours], [w.start for w in theirs], atol=5e-3)


def test_second_attempts_are_drawn(folders, clips):
    """CTranslate2 draws by itself; what it drew has its probabilities."""
    for _, export in folders:
        if "whisper" in export.name:
            model = unchecked(export)
            inputs = model.bundle.processor.collate(clips, labels=False).inputs
            generators = [torch.Generator().manual_seed(i) for i in range(len(clips))]
            options = {"temperature": 0.9, "generators": generators}
            drawn = model.bundle.model.generate(inputs, [5] * len(clips), {model.bundle.processor.eos_id}, **options)
            assert all(o.ids and len(o.ids) == len(o.log_probs) and max(o.log_probs) <= 0 for o in drawn)


def test_openai_client_gets_the_same(folders, serve, tmp_path):
    """Transcriptions of several clips at once, with words where the model has them, and a long recording."""
    long = np.concatenate([np.append(say(text).audio, np.zeros(24000, np.float32)) for text in TEXTS * 5])
    write(tmp_path / "long.wav", long, 16000)
    write(tmp_path / "short.wav", say(TEXTS[0]).audio, 16000)
    few = [pair for pair in folders if pair[0].name in ("whisper", "transducer")]
    runs = {name.name: name for pair in few for name in pair}
    server = serve(*runs.values())
    client: openai.OpenAI = server.client
    for model, export in few:
        for name in ("short.wav", "long.wav"):
            answers = []
            for run in (model, export):
                with open(tmp_path / name, "rb") as file:
                    asked = {"response_format": "verbose_json", "temperature": 0.0}
                    answer = client.audio.transcriptions.create(file=file, model=run.name, **asked)
                answers.append((answer.text, answer.language, len(answer.segments)))
            assert answers[0] == answers[1], (export, name)


def damaged(export: Path, to: Path, change) -> Path:
    shutil.copytree(export, to)
    change(to)
    return to


def test_damaged_exports_have_one_sentence(folders, tmp_path):
    transducer = next(export for _, export in folders if export.name == "transducer-onnx")
    whisper = next(export for _, export in folders if export.name == "whisper-ctranslate2")

    def facts(**changed):
        def change(folder):
            path = folder / "onnx_config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changed))

        return change

    def cut(name):
        return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:500])

    for number, (export, change, sentence) in enumerate(
        (
            (transducer, lambda f: (f / "joint.onnx").unlink(), "joint.onnx is missing"),
            (transducer, cut("encoder-model.onnx"), "encoder-model.onnx is damaged"),
            (transducer, cut("onnx_config.json"), "cannot be read as the facts of an ONNX export"),
            (transducer, facts(format=9), "another version of Stentor"),
            (transducer, facts(kind="turtle"), "of the kind turtle, which Stentor does not run"),
            (transducer, facts(kind="ctc", graphs={}), "names no graph encoder"),
            (whisper, cut("model.bin"), "cannot be read by CTranslate2"),
            (whisper, lambda f: (f / "model.bin").unlink(), "cannot be read by CTranslate2"),
            (whisper, lambda f: shutil.rmtree(f / "stentor"), "a CTranslate2 model that Stentor did not write"),
        )
    ):
        folder = damaged(export, tmp_path / str(number), change)
        with pytest.raises(ConfigError, match=sentence):
            stentor.load(folder)


def test_models_of_other_programs_say_what_they_are_for(folders, tmp_path, capsys):
    """In each verb: load, serve, evaluate, train and export."""
    from stentor.inference.load import from_runs

    for format, runtime in (
        ("sherpa", "sherpa-onnx"),
        ("ggml", "whisper.cpp"),
        ("gguf", "CrispASR"),
        ("web", "browser"),
    ):
        folder = tmp_path / format
        folder.mkdir()
        (folder / "export.json").write_text(json.dumps({"format": format}))
        with pytest.raises(ConfigError, match=f"an export for .*{runtime}"):
            stentor.load(folder)
    files = {
        "a.gguf": "GGUF",
        "ggml-base.bin": r"whisper\.cpp",
        "encoder.onnx": "sherpa-onnx",
        "model.bin": "CTranslate2",
    }
    for name, sentence in files.items():
        folder = tmp_path / f"of {name}"
        folder.mkdir()
        (folder / name).write_bytes(b"0")
        for path in (folder, folder / name):
            with pytest.raises(ConfigError, match=sentence):
                stentor.load(path)
    audio = tmp_path / "a.wav"
    write(audio, np.zeros(1600, np.float32), 16000)
    sherpa = str(tmp_path / "sherpa")
    for verb in (
        ["serve", sherpa],
        ["transcribe", sherpa, str(audio)],
        ["export", sherpa, "--to", str(tmp_path / "x")],
    ):
        assert main(verb) == 2 and "is an export for sherpa-onnx" in capsys.readouterr().err
    export = folders[0][1]
    for key in ("init", "from"):
        section = {"type": "seq2seq", "from": str(tmp_path), key: str(export)}
        with pytest.raises(ConfigError, match="ctranslate2 export, which cannot be trained"):
            from_runs(Family.model_validate(section))
    assert main(["export", str(export), "--to", str(tmp_path / "y"), "--format", "onnx"]) == 2
    assert "is an export already" in capsys.readouterr().err
    assert main(["export", str(export), "--to", str(tmp_path / "y"), "--merge"]) == 2
    assert "is an export already" in capsys.readouterr().err
