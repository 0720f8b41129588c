"""`stentor evaluate` on evaluation lists: a model's speech, and speech that is there already."""

import hashlib
import json
import math

import numpy as np
import pytest
from speaking import RATE, voiced

from stentor.audio.io import read, write
from stentor.audio.synth import say
from stentor.cli import main
from stentor.text.normalize import normalize

STUBS = '''
import json
from pathlib import Path
from typing import ClassVar, Literal
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

class TextByLength(SpeechEvaluator):
    """The text that a table has for so many samples; the table's first text otherwise."""
    type: Literal["text_by_length"] = "text_by_length"
    table: Path
    gives: ClassVar = "text"
    def load(self, device="cpu"):
        table = json.loads(self.table.read_text("utf-8"))
        first = next(iter(table.values()))
        return LoadedEvaluator(16000, lambda audios, languages: [table.get(str(len(a)), first) for a in audios])

class Bands(SpeechEvaluator):
    """The power in eight bands."""
    type: Literal["bands"] = "bands"
    gives: ClassVar = "voice"
    def load(self, device="cpu"):
        import numpy as np
        def embed(audio):
            return np.array([part.sum() for part in np.array_split(np.abs(np.fft.rfft(audio)), 8)], np.float32)
        return LoadedEvaluator(16000, lambda audios, languages: [embed(a) for a in audios])
'''
ENGLISH = {
    "u1": ("Don't stop, it's well-known.", "don't stop its well none"),
    "u2": ("One two three.", "one two three"),
}
CHINESE = {"z1": ("你好，世界。", "你好世"), "z2": ("今天很好！", "今天很好吧")}
"""By id: the text, and what the recogniser hears."""


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """The plug-in, once for a process, which may make the folder of this module twice."""
    path = tmp_path_factory.mktemp("stubs") / "speech_list_stubs.py"
    path.write_text(STUBS)
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Lists of several formats, with prompts of built-in voices and, in `made`, speech of somebody else."""
    folder = tmp_path_factory.mktemp("world")
    for name, voice in (("p1", "en-us+m3"), ("p2", "en-us+f2")):
        write(folder / f"{name}.wav", say("this is how i speak every day", voice).audio, RATE)
    (folder / "en.lst").write_text(
        f"u1|this is how i speak|p1.wav|{ENGLISH['u1'][0]}\nu2|this is how i speak|p2.wav|{ENGLISH['u2'][0]}\n"
    )
    (folder / "zh").mkdir()
    rows = "".join(f"{name}|one two|../p{i}.wav|{text}\n" for i, (name, (text, _)) in enumerate(CHINESE.items(), 1))
    (folder / "zh" / "meta.lst").write_text(rows, encoding="utf-8")
    rows = [
        {"id": name, "text": text, "ref_audio": "p1.wav", "ref_text": "one two", "language_id": language}
        for language, texts in (("en", ENGLISH), ("zh", CHINESE))
        for name, (text, _) in texts.items()
    ]
    (folder / "fleurs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = {}
    for i, (name, (_, transcript)) in enumerate((ENGLISH | CHINESE).items()):
        write(folder / "made" / f"{name}.wav", voiced(1 + 0.1 * i, 120 + 40 * i), RATE)
        table[str(len(voiced(1 + 0.1 * i)))] = transcript
    (folder / "table.json").write_text(json.dumps(table))
    return folder


@pytest.fixture
def evaluate(world, stubs, tmp_path, capsys, cli):
    """(what is printed, the JSON, the predictions by id) of an evaluation with the stubs."""

    def run(*arguments):
        out = tmp_path / "scores.json"
        judges = ["--judge", f"type=text_by_length,table={world / 'table.json'}", "--judge", "bands"]
        plugin = ["--plugin", stubs, "--json", out]
        command = ["evaluate", *map(str, [*arguments, *judges, *plugin])]
        if "--processes" in arguments:
            printed = cli(*command).stdout
        else:
            code = main(command)
            printed, problem = capsys.readouterr()
            assert code == 0, problem
        rows = [json.loads(line) for line in out.with_suffix(".predictions.jsonl").read_text("utf-8").splitlines()]
        return printed, json.loads(out.read_text("utf-8")), {row["id"]: row for row in rows}

    return run


def bands(audio):
    return np.array([part.sum() for part in np.array_split(np.abs(np.fft.rfft(audio)), 8)], np.float32)


def cosine(one, other):
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def test_the_error_rate_of_existing_audio_is_that_of_jiwer(evaluate, world):
    jiwer = pytest.importorskip("jiwer")
    printed, scores, rows = evaluate("--audio-from", world / "made", "--data", f"{world / 'en.lst'},language=en")
    texts = [(normalize(a, "seed_tts", "en"), normalize(b, "seed_tts", "en")) for a, b in ENGLISH.values()]
    measured = scores["eval"]
    assert measured["wer"]["value"] == jiwer.wer([a for a, _ in texts], [b for _, b in texts]) == 3 / 7
    assert measured["wer_mean"]["value"] == np.mean([jiwer.wer(a, b) for a, b in texts])
    assert measured["cer"]["value"] == jiwer.cer([a for a, _ in texts], [b for _, b in texts])
    assert rows["u1"]["output"]["heard"]["text"]["synthetic"] == ENGLISH["u1"][1]
    assert scores["model"] is None and "real_time_factor" not in measured and "loss" not in measured
    digest = hashlib.sha256((world / "en.lst").read_bytes()).hexdigest()
    facts = {"name": "en.lst", "format": "seed_tts", "sha256": digest}
    assert scores["list"] == {**facts, "protocol": "seed_tts", "items": 2}
    assert f"en.lst (seed_tts, 2 items, sha256 {digest})" in printed and "normaliser seed_tts" in printed


def test_the_voice_is_compared_with_the_prompt_as_it_is(evaluate, world):
    _, scores, _ = evaluate("--audio-from", world / "made", "--data", world / "en.lst")
    pairs = zip(("u1", "u2"), ("p1.wav", "p2.wav"), strict=True)
    cosines = [cosine(bands(read(world / "made" / f"{a}.wav")), bands(read(world / b))) for a, b in pairs]
    assert scores["eval"]["similarity"]["value"] == pytest.approx(np.mean(cosines), abs=1e-7)
    assert scores["eval"]["similarity"]["details"]["items"] == 2


def test_sim_o_is_the_cosine_of_transformers_own_x_vectors(world, capsys):
    import torch
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    small |= {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
    network = WavLMForXVector(WavLMConfig(**small, tdnn_dim=[32, 32, 32, 32, 96], xvector_output_dim=24)).eval()
    network.save_pretrained(world / "wavlm")
    extractor = Wav2Vec2FeatureExtractor()
    extractor.save_pretrained(world / "wavlm")
    out = world / "sim.json"
    options = ["--audio-from", world / "made", "--data", world / "en.lst", "--embedder", world / "wavlm", "--json", out]
    assert main(["evaluate", *map(str, options)]) == 0

    def embedding(path):
        with torch.no_grad():
            inputs = extractor(read(path, rate=16000), sampling_rate=16000, return_tensors="pt")
            return torch.nn.functional.normalize(network(**inputs).embeddings[0], dim=-1)

    pairs = zip(("u1", "u2"), ("p1.wav", "p2.wav"), strict=True)
    pairs = [(embedding(world / "made" / f"{a}.wav"), embedding(world / b)) for a, b in pairs]
    cosines = [torch.nn.CosineSimilarity(dim=-1)(a, b).item() for a, b in pairs]
    measured = json.loads(out.read_text())["eval"]["similarity"]
    assert measured["value"] == pytest.approx(np.mean(cosines), abs=2e-7) and cosines[0] != cosines[1]
    assert measured["low"] <= measured["value"] <= measured["high"]
    assert f"{measured['value']:.4g} (" in capsys.readouterr().out


def test_chinese_is_scored_by_character(evaluate, world):
    _, scores, _ = evaluate("--audio-from", world / "made", "--data", world / "zh" / "meta.lst")
    assert (scores["eval"]["wer"]["errors"], scores["eval"]["wer"]["total"]) == (2, 8)


def test_languages_have_a_macro_average(evaluate, world):
    printed, scores, _ = evaluate("--audio-from", world / "made", "--data", world / "fleurs.jsonl")
    parts = scores["by"]["language"]
    assert scores["normalizer"] == "fleurs" and "cer" not in scores["eval"]
    assert parts["zh"]["wer"]["value"] == 2 / 8
    # By character, spaces among them: i t ' s | w e l l - k n o w n -> i t s | w e l l | n o n e
    assert parts["en"]["wer"]["total"] == len("don't stop it's well-known") + len("one two three")
    values = [parts[language]["wer"]["value"] for language in ("en", "zh")]
    assert scores["eval"]["wer_macro"]["value"] == pytest.approx(np.mean(values))
    assert set(parts["en"]) == {"wer", "wer_mean", "similarity", "speaking_rate"} and "wer_macro" in printed


def test_a_model_speaks_a_list_in_the_voices_of_its_references(evaluate, world, model, tmp_path):
    wavs = tmp_path / "wavs"
    printed, scores, rows = evaluate(model, "--data", world / "en.lst", "--audio", wavs)
    assert list(scores["eval"]) == ["wer", "cer", "wer_mean", "similarity", "speaking_rate", "real_time_factor"]
    assert scores["voices"] == {"reference": 2} and scores["length"] == "rule"
    assert rows["u1"]["output"]["like"] == str(world / "p1.wav")
    assert "2 records spoken (2 like their reference; as long as the duration rule has it" in printed
    assert "codec" not in printed and "real" not in printed.replace("real time factor", "")
    spoken = [read(wavs / f"{name}.wav", check_silence=False) for name in ("u1", "u2")]
    cosines = [cosine(bands(a), bands(read(world / f"p{i}.wav"))) for i, a in enumerate(spoken, 1)]
    assert scores["eval"]["similarity"]["value"] == pytest.approx(np.mean(cosines), abs=1e-3)  # files have 16 bits
    # What it wrote is scored the same from the files.
    _, again, _ = evaluate("--audio-from", wavs, "--data", world / "en.lst")
    assert again["eval"]["wer"] == scores["eval"]["wer"]


FORMATS = {
    "minimax": {
        "text/english.txt": "english_male|one two\n",
        "speaker/prompt_text.txt": "m.wav|this is how i speak\n",
        "speaker/english/english_male/m.wav": "p1.wav",
    },
    "librispeech_pc": {
        "list.lst": "908-1-0001\t2.0\tthis is how i speak\t908-2-0001\t1.5\tone two\n",
        "908/1/908-1-0001.flac": "p1.wav",
        "908/2/908-2-0001.flac": "made/u1.wav",
    },
    "tsv": {"list.tsv": "u1\tthis is how i speak\tp1.wav\tone two\n", "p1.wav": "p1.wav"},
    "jsonl": {
        "list.jsonl": '{"id": "u1", "text": "one two", "reference": "p1.wav", "duration": 0.8, '
        '"reference_text": "this is how i speak"}\n',
        "p1.wav": "p1.wav",
    },
}
"""Files of a list in each format, the list first; of audio the recording that it is."""


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_runs_end_to_end(evaluate, world, model, tmp_path, name):
    for file, content in FORMATS[name].items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        if content.endswith(".wav"):
            write(tmp_path / file, read(world / content), RATE)
        else:
            (tmp_path / file).write_text(content)
    path = tmp_path / next(iter(FORMATS[name]))
    _, scores, rows = evaluate(model, "--data", path)
    assert scores["list"]["format"] == name and scores["voices"] == {"reference": 1}
    assert math.isfinite(scores["eval"]["similarity"]["value"]) and scores["eval"]["wer"]["total"] > 0
    # Where the recording of the text is there, it stands beside the speech.
    assert ("wer_real" in scores["eval"]) == ("wer_codec" in scores["eval"]) == (name == "librispeech_pc")
    if name == "jsonl":
        assert rows["u1"]["output"]["seconds"] == pytest.approx(0.8, abs=0.05)


def test_two_processes_give_what_one_gives(world, model, tmp_path, evaluate):
    texts = ("one", "two three", "four", "five six seven")
    lines = [f"u{i}|this is how i speak|p{1 + i % 2}.wav|{text}\n" for i, text in enumerate(texts)]
    (world / "four.lst").write_text("".join(lines))
    arguments = [model, "--data", world / "four.lst", "--audio"]
    _, one, rows = evaluate(*arguments, tmp_path / "one")
    _, two, same = evaluate(*arguments, tmp_path / "two", "--processes", 2)
    del one["eval"]["real_time_factor"], two["eval"]["real_time_factor"]
    assert one == two and len(rows) == 4
    for name, row in rows.items():
        assert {**row["output"], "audio": None} == {**same[name]["output"], "audio": None}
        files = [(tmp_path / part / f"{name}.wav").read_bytes() for part in ("one", "two")]
        assert files[0] == files[1]


def test_a_line_may_name_a_saved_voice(evaluate, world, model, tmp_path, capsys):
    from stentor.inference.speak.voice import Voice, save_voice
    from stentor.models.codecs.base import open_codec

    codec = open_codec(str(model))
    save_voice(Voice(codec.encode([voiced(1)])[0], "one two"), tmp_path / "ann", codec)
    rows = [{"id": f"u {i}", "text": t, "voice": str(tmp_path / "ann")} for i, t in enumerate(("one", "two"))]
    rows[1]["reference"] = str(world / "p1.wav")  # what it is compared with, without a text
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [model, "--data", tmp_path / "list.jsonl"]
    printed, scores, rows = evaluate(*arguments, "--audio", tmp_path / "wavs")
    assert scores["voices"] == {"voice": 2} and "2 in a saved voice" in printed
    assert scores["eval"]["similarity"]["details"]["items"] == 1
    assert len({row["output"]["audio"] for row in rows.values()}) == len(list((tmp_path / "wavs").iterdir())) == 2
    assert main(["evaluate", *map(str, arguments), "--length", "recorded"]) == 2
    assert "not every record has a recording" in capsys.readouterr().err
    # The words of a reference are asked for where its voice is copied.
    assert main(["evaluate", *map(str, arguments), "--voice", "reference"]) == 2
    assert "what is said in its reference" in capsys.readouterr().err
    (tmp_path / "list.jsonl").write_text(json.dumps({"id": "u", "text": "one", "reference": str(world / "p1.wav")}))
    _, scores, _ = evaluate(*arguments, "--voice", "none")
    assert scores["voices"] == {"none": 1} and scores["eval"]["similarity"]["details"]["items"] == 1
