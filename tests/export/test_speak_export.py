"""Models that speak as ONNX graphs: the program beside them says what Stentor says, with numpy's and torch's chance."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / part) for part in ("models", "inference", "audio")]  # for the tiny models
onnxruntime = pytest.importorskip("onnxruntime", reason="needs stentor[onnx]")

import tiny_codecs  # noqa: E402
import tiny_tts_frames  # noqa: E402
from speaking import make_codec, make_model, voiced  # noqa: E402

from alone import alone  # noqa: E402
from stentor.cli import main  # noqa: E402
from stentor.errors import ConfigError  # noqa: E402
from stentor.export.export import Settings, export  # noqa: E402
from stentor.export.onnx.codec import write_codec  # noqa: E402
from stentor.inference.load import load  # noqa: E402
from stentor.inference.speak.reference import make_voice  # noqa: E402
from stentor.models.codecs.base import AudioCodec, Codec  # noqa: E402
from stentor.models.codecs.neural import part_codec  # noqa: E402

pytestmark = pytest.mark.slow
SURE = {"generation": {"temperature": 0.5, "flow_steps": 2}}


def facts_of(folder: Path) -> dict:
    return json.loads((folder / "export.json").read_text())


def speak(folder: Path, to: Path, *options: str) -> np.ndarray:
    """The program's speech, where Stentor and torch cannot be imported."""
    alone(folder / "speak.py", *options, "--to", to)
    return soundfile.read(to)[0]


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> tuple[Path, Path]:
    """A model of masked tokens, and its export with a quantised copy."""
    folder = tmp_path_factory.mktemp("masked")
    model, to = make_model(folder / "model"), folder / "onnx"
    main(["export", str(model), "--to", str(to), "--format", "onnx", "--quantization", "float32,int8"])
    return model, to


@pytest.fixture(scope="module")
def flow(tmp_path_factory) -> tuple[Path, Path]:
    """A model of continuous latents, and its export."""
    folder = tmp_path_factory.mktemp("flow")
    bundle = tiny_tts_frames.build("pocket_tts", tiny_tts_frames.write("pocket_tts", folder / "files"), **SURE)
    bundle.family.save(bundle, bundle.model.state_dict(), folder / "model")
    (folder / "model" / "training_config.json").write_text(json.dumps({"task": {"type": "speak"}, "model": {}}))
    main(["export", str(folder / "model"), "--to", str(folder / "onnx"), "--format", "onnx"])
    return folder / "model", folder / "onnx"


def test_the_export_has_the_same_tokens_and_audio(masked):
    _, to = masked
    _, float32, int8 = facts_of(to)["rows"]
    assert facts_of(to)["clips"] == 16 and facts_of(to)["judge"] is None
    assert float32["differ"] == 0 and float32["audio"] < 1e-3
    assert int8["megabytes"] < float32["megabytes"]
    card = (to / "README.md").read_text()
    assert "No recogniser heard" in card and "| int8 |" in card
    assert len((to / "float32" / "speak.py").read_text().splitlines()) <= 250


def test_the_program_runs_alone_and_repeats_a_seed(masked, tmp_path):
    _, to = masked
    long = "One two three four five six seven eight nine zero. " * 12
    first, again, other = (
        speak(to / "float32", tmp_path / f"{n}.wav", long, "--seed", seed) for n, seed in enumerate(("1", "1", "2"))
    )
    assert np.array_equal(first, again) and len(first) > 15 * 16000
    assert first.shape != other.shape or not np.array_equal(first, other)


def test_a_voice_is_that_of_stentor(masked, tmp_path):
    model, to = masked
    soundfile.write(tmp_path / "voice.wav", voiced(2.0, 140.0), 16000, subtype="FLOAT")
    codec = load(str(model)).bundle.processor.codec
    expected = make_voice(tmp_path / "voice.wav", codec, "one two three")
    from stentor.export.program import load_program

    program = load_program(to / "float32", "speak.py")
    voice = program.Speaker(to / "float32").voice(tmp_path / "voice.wav", "one two three")
    assert voice.codes.shape == expected.codes.shape and np.mean(voice.codes == expected.codes) > 0.99
    reference = ("--reference", str(tmp_path / "voice.wav"), "--reference-text", "one")
    audio = speak(to / "float32", tmp_path / "v.wav", "four", *reference)
    assert np.abs(audio).max() > 0.01


def test_latents_are_those_of_stentor(flow, tmp_path):
    _, to = flow
    _, float32 = facts_of(to)["rows"]
    assert float32["differ"] == 0
    assert len((to / "speak.py").read_text().splitlines()) <= 250
    assert len(speak(to, tmp_path / "a.wav", "one two three.", "--seed", "3")) > 1000


def test_what_cannot_be_exported_is_named(tmp_path):
    model = make_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="--judge is for other formats"):
        export(str(model), tmp_path / "to", settings=Settings(judge="some/recogniser"))
    with pytest.raises(ConfigError, match="Formats of this model: hf, onnx"):
        export(str(model), tmp_path / "to", formats=["sherpa"])
    with pytest.raises(ConfigError, match="The codec odd cannot be exported to ONNX"):
        odd = AudioCodec()
        odd.type = "odd"
        write_codec(odd, tmp_path, True)


def codec_of(kind: str, folder: Path) -> AudioCodec:
    if kind == "pocket_tts":
        return part_codec(tiny_tts_frames.pocket_codec())
    if kind == "mel_rvq with a network":
        return make_codec(decoder={"steps": 3, "minutes": 0.1, "width": 16, "layers": 1})
    path = tiny_codecs.build(kind, folder)
    section = {"type": kind, "from": str(path)}
    return Codec.model_validate(section | ({"bandwidth": 9.6} if kind == "encodec" else {})).open()


@pytest.mark.parametrize("kind", ["higgs_audio_v2", "mimi", "dac", "encodec", "pocket_tts", "mel_rvq with a network"])
def test_codecs_as_graphs(kind, tmp_path):
    codec, random = codec_of(kind, tmp_path / "codec"), np.random.default_rng(0)
    write_codec(codec, tmp_path, True)
    if codec.vocabulary is None:
        codes = random.standard_normal((codec.codebooks, 31)).astype(np.float32)
    else:
        codes = random.integers(0, codec.vocabulary, (codec.codebooks, 31))
    decoder, encoder = (
        onnxruntime.InferenceSession(tmp_path / f"codec_{part}.onnx") for part in ("decoder", "encoder")
    )
    audio, expected = decoder.run(None, {"codes": codes[None]})[0], codec.decode([codes.astype(codec.dtype)])[0]
    audio = np.pad(audio, (0, max(0, len(expected) - len(audio))))[: len(expected)]
    assert np.abs(audio - expected).max() < 1e-3 * max(1.0, np.abs(expected).max())
    clip = (0.1 * random.standard_normal(codec.hop * 33)).astype(np.float32)
    found, wanted = encoder.run(None, {"audio": clip.reshape(-1, codec.hop)})[0], codec.encode([clip])[0]
    assert found.shape == wanted.shape and np.isclose(found, wanted, atol=1e-3).mean() > 0.99
