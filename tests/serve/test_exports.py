"""Exports for onnxruntime and CTranslate2 as models: the answers of the torch model, in Python and to the unmodified
openai client; and folders that are no model of Stentor's, each with one sentence."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openai
import pytest
import torch
from process import Served
from realtime import Client

import stentor
from stentor.audio.io import write
from stentor.audio.synth import say
from stentor.cli import main
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.table import exporter_of
from stentor.models.base import Family, TaskRequirements
from tiny_configs import WHISPER

sys.path.insert(0, str(Path(__file__).parents[1] / "export"))
for package in ("onnx", "onnxscript", "onnxruntime", "ctranslate2"):
    pytest.importorskip(package)
recognisers, transducers = importlib.import_module("recognisers"), importlib.import_module("test_transducer")

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


MODELS = {
    "whisper": whisper,
    "transducer": lambda folder: shutil.copytree(FROZEN, folder),
    "stream": lambda folder: recognisers.save(transducers.own(streaming={}), folder),
    "ctc": lambda folder: recognisers.save(recognisers.ctc("parakeet"), folder),
    "wave": lambda folder: recognisers.save(recognisers.ctc("wav2vec2_large"), folder),
}
"""By kind, what writes a model into a folder."""


def exported(model: Path, to: Path, format: str, quantization: str | None = None) -> Path:
    """An export as the command writes it, without the comparison, which tests/export has."""
    loaded = stentor.load(model, "cpu")
    exporter = exporter_of(format, loaded.bundle)
    to.mkdir()
    exporter.write(loaded, to)
    if quantization is not None:
        whole = to.rename(to.with_name("whole"))
        to.mkdir()
        exporter.quantize(loaded, whole, to, quantization)
    shutil.copy(model / "training_config.json", to)
    return to


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models and exports of each."""
    at = tmp_path_factory.mktemp("exports")
    ways = [("whisper", "ctranslate2"), ("whisper", "onnx"), ("transducer", "onnx"), ("ctc", "onnx")]
    ways += [("wave", "ctranslate2"), ("stream", "onnx")]
    models = {kind: MODELS[kind](at / kind) for kind in dict(ways)}
    return [(models[kind], exported(models[kind], at / f"{kind}-{format}", format)) for kind, format in ways]


@pytest.fixture(scope="module")
def clips():
    return [Example(text, say(text).audio, text) for text in TEXTS]


def unchecked(folder):
    model = stentor.load(folder, "cpu")
    model.task.checks.on = False
    return model


@pytest.mark.slow
def test_answers_are_those_of_torch(folders, clips):
    """Texts, probabilities, times and words of a batch; beams and hotwords where both search the same way: CTranslate2
    has a beam search of its own."""
    for folder, export in folders:
        model, other = unchecked(folder), unchecked(export)
        assert other.bundle.capabilities == model.bundle.capabilities
        near = 0.25 if export.name == "ctc-onnx" else 2e-3  # in that graph, classes that write nothing are the blank
        ways = [{}]
        hot = {"hotwords": ["two nine"], "hotword_strength": 3.0}
        if export.name == "whisper-ctranslate2":
            with pytest.raises(ConfigError, match="takes no hotwords"):
                other.task.model_copy(update=hot).predict(other.bundle, clips)
        elif export.name != "ctc-onnx":
            ways += [{"beams": 3}, hot]
        for way in ways:
            ours, theirs = [m.task.model_copy(update=way).predict(m.bundle, clips) for m in (model, other)]
            for a, b in zip(ours, theirs, strict=True):
                assert a["text"] == b["text"] and abs(a["log_prob"] - b["log_prob"]) < near, (export, way)
                assert a.keys() == b.keys() and a.get("language") == b.get("language") and a.get("ctc") == b.get("ctc")
                assert [w["word"] for w in a["words"]] == [w["word"] for w in b["words"]]
                for one, two in zip(a["words"], b["words"]):
                    assert all(np.allclose(one[k], two[k], 0, 5e-3 + near) for k in one.keys() - {"word"})
        for answers in other.bundle.model.generate(
            other.bundle.processor.collate(clips, labels=False).inputs,
            [9] * len(clips),
            {other.bundle.processor.eos_id},
            beams=2,
            num_answers=2,
        ):
            assert 1 <= len(answers.alternatives) <= 2


@pytest.mark.slow
def test_known_texts_are_aligned(folders, clips):
    from stentor.inference.align.engines import aligner_of, clip_of
    from stentor.inference.recording import open_recording

    for folder, export in folders:
        if "transducer" in folder.name:
            clip = clip_of(open_recording(clips[0].audio, 16000, 16000), TEXTS[0])
            ours, theirs = [aligner_of(unchecked(f)).align([clip])[0].words for f in (folder, export)]
            assert [w.word for w in theirs] == TEXTS[0].split()
            np.testing.assert_allclose([w.start for w in ours], [w.start for w in theirs], atol=5e-3)


@pytest.mark.slow
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


SERVED = [("stream", "onnx"), ("transducer", "onnx"), ("ctc", "onnx"), ("whisper", "onnx"), ("whisper", "ctranslate2")]
SERVED += [("whisper", "ctranslate2 int8")]


@pytest.mark.parametrize(
    ("kind", "way"),
    [pytest.param(*row, marks=pytest.mark.long if row == SERVED[4] else pytest.mark.slow) for row in SERVED],
)
def test_a_server_answers_the_same(kind, way, tmp_path):
    """A process of its own, by the unmodified client: a clip and a long recording, words, a stream, and the WebSocket.
    Weights of 8 bits give what they give in Python; the others what torch gives."""
    model = MODELS[kind](tmp_path / "model")
    facts = {"task": {"type": "transcribe", "checks": {"on": False}}}  # no second attempts: they are drawn
    (model / "training_config.json").write_text(json.dumps(facts))
    export = exported(model, tmp_path / "graphs", *way.split())
    long = np.concatenate([np.append(say(text).audio, np.zeros(24000, np.float32)) for text in TEXTS * 4])
    files = [tmp_path / "a.wav", tmp_path / "b.wav"]
    for file, audio in zip(files, (say(TEXTS[0]).audio, long)):
        write(file, audio, 16000)
    with Served(model, tmp_path / "temporary", str(export)) as server:
        url = "http://{}:{}".format(*server.address)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
            ours, theirs = ([answers(client, url, name, file, kind) for file in files] for name in ("model", "graphs"))
    if "int8" in way:
        assert [a["text"] for a in theirs] == [stentor.load(export, "cpu").transcribe(file).text for file in files]
    else:
        assert theirs == ours
    assert all(answer["text"] for answer in theirs)


def answers(client: openai.OpenAI, url: str, name: str, file: Path, kind: str) -> dict:
    """What the routes give for a file."""
    timed = kind in ("stream", "transducer")
    asked = {"timestamp_granularities": ["word", "segment"]} if timed else {}
    create = client.audio.transcriptions.create
    verbose = create(file=file, model=name, response_format="verbose_json", temperature=0.0, **asked)
    events = list(create(file=file, model=name, stream=True))
    answer = {"text": verbose.text, "language": verbose.language, "streamed": events[-1].text}
    answer["segments"] = [(s.text, round(s.start, 1), round(s.end, 1)) for s in verbose.segments]
    answer["words"] = [(w.word, round(w.start, 2), round(w.end, 2)) for w in verbose.words or ()]
    assert events[-1].type == "transcript.text.done" and bool(answer["words"]) == timed
    if kind == "stream":
        clip = say(TEXTS[0]).audio
        at24 = 2**15 * np.interp(np.arange(len(clip) * 3 // 2) / 1.5, np.arange(len(clip)), clip)
        with Client(SimpleNamespace(url=url), f"model={name}") as live:
            live.configure(turn_detection=None)
            live.append(at24.astype(np.int16), 7)
            live.commit()
            answer["live"] = live.events(".completed")[-1]["transcript"]
    return answer


def damaged(export: Path, to: Path, change) -> Path:
    shutil.copytree(export, to)
    change(to)
    return to


@pytest.mark.slow
def test_damaged_exports_have_one_sentence(folders, tmp_path):
    transducer = next(export for _, export in folders if export.name == "transducer-onnx")
    whisper = next(export for _, export in folders if export.name == "whisper-ctranslate2")

    def facts(**changed):
        return lambda folder: rewritten(folder, lambda known: known.update(changed))

    def rewritten(folder, change):
        path = folder / "onnx_config.json"
        change(facts := json.loads(path.read_text()))
        path.write_text(json.dumps(facts))

    def cut(name):
        return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:500])

    for number, (export, change, sentence) in enumerate(
        (
            (transducer, lambda f: (f / "joint.onnx").unlink(), "joint.onnx is missing"),
            (transducer, cut("encoder-model.onnx"), "encoder-model.onnx is damaged"),
            (transducer, cut("onnx_config.json"), "cannot be read as the facts of an ONNX export"),
            (transducer, facts(format=9), "another version of Stentor"),
            (transducer, facts(kind="turtle"), "of the kind turtle, which Stentor does not run"),
            (transducer, facts(graphs={}), "names no graph encoder"),
            (
                transducer,
                facts(kind="seq2seq"),
                "of the kind seq2seq, and config.json beside it of the family transducer",
            ),
            (transducer, lambda f: (f / "onnx_config.json").write_text("[1]"), "cannot be read as the facts"),
            (transducer, lambda f: rewritten(f, lambda d: d.pop("states")), "has no 'states'"),
            (whisper, cut("model.bin"), "cannot be read by CTranslate2"),
            (whisper, lambda f: (f / "model.bin").unlink(), "cannot be read by CTranslate2"),
            (whisper, lambda f: shutil.rmtree(f / "stentor"), "a CTranslate2 model that Stentor did not write"),
        )
    ):
        folder = damaged(export, tmp_path / str(number), change)
        with pytest.raises(ConfigError, match=sentence):
            stentor.load(folder)


@pytest.mark.slow
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
