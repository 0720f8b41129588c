"""`stentor evaluate` of a model that speaks: its loss, and what others hear in its speech beside the real one."""

import json
import shutil

import pytest
from speaking import RATE, voiced

from stentor.cli import main
from stentor.inference.speak.speaker import Speaker

SPEAKERS = {"low": 110, "high": 230}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Eight recordings of two speakers, and one of a third, with texts."""
    from stentor.audio.io import write

    folder = tmp_path_factory.mktemp("data")
    lines = []
    for i in range(9):
        speaker = ["low", "high"][i % 2] if i < 8 else "alone"
        write(folder / f"{i}.wav", voiced(1.2 + 0.1 * i, SPEAKERS.get(speaker, 150), seed=i), RATE)
        record = {"id": f"r{i}", "audio_path": f"{i}.wav", "text": "one two three", "speaker": speaker}
        record["reference"] = "an older text"  # the file of a voice in evaluation lists alone
        lines.append(json.dumps(record | ({"instruct": "female"} if i == 2 else {})))
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "test.jsonl"


@pytest.fixture
def evaluate(model, data, tmp_path, capsys):
    """(what is printed, the JSON, the predictions) of an evaluation with some options."""

    def run(*options, source=data):
        out = tmp_path / "scores.json"
        code = main(["evaluate", str(model), "--data", str(source), "--json", str(out), *map(str, options)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        rows = [json.loads(line) for line in out.with_suffix(".predictions.jsonl").read_text().splitlines()]
        return captured.out, json.loads(out.read_text()), rows

    return run


def test_three_columns(evaluate, recognizer, tmp_path):
    from stentor.audio.io import probe

    printed, scores, rows = evaluate("--recognizer", recognizer, "--embedder", "cepstra", "--audio", tmp_path / "wavs")
    measured = scores["eval"]
    rates = ["wer", "cer", "similarity", "voice_accuracy", "speaking_rate"]
    columns = [f"{rate}{column}" for rate in rates for column in ("", "_codec", "_real")]
    assert list(measured) == ["loss", *columns, "real_time_factor"]
    assert (
        scores["records"] == 9 and measured["wer"]["total"] == 27 and measured["wer"]["low"] <= measured["wer"]["high"]
    )
    assert measured["loss"]["details"]["items"] == 9 and measured["loss"]["value"] > 1
    assert scores["voices"] == {"reference": 7, "instruct": 1, "none": 1} and scores["length"] == "recorded"
    assert measured["voice_accuracy_real"]["value"] == 1.0, "two tones are easily told apart"
    assert measured["voice_accuracy_real"]["total"] == 8, "of the third speaker there is one recording"
    assert measured["similarity"]["details"]["items"] == 9 and measured["similarity_real"]["details"]["items"] == 8
    assert measured["real_time_factor"]["value"] > 0
    # Eleven letters in recordings of 1.2 to 2 s.
    assert measured["speaking_rate_real"]["value"] == pytest.approx(
        9 * 11 / sum(1.2 + 0.1 * i for i in range(9)), rel=0.01
    )
    # What was said is there to be read and heard, as long as the recording, and in whose voice.
    by_id = {row["id"]: row for row in rows}
    assert by_id["r0"]["output"]["like"] == "r2" and by_id["r6"]["output"]["like"] == "r0"
    assert by_id["r2"]["output"]["voice"] == "instruct" and by_id["r8"]["output"]["voice"] == "none"
    assert set(by_id["r0"]["output"]["heard"]["text"]) == {"synthetic", "codec", "real"}
    for row in rows:
        assert probe(row["output"]["audio"]).duration == pytest.approx(row["output"]["seconds"], abs=1e-3)
        assert row["output"]["seconds"] == pytest.approx(row["seconds"], abs=0.05)
    assert "9 records spoken (7 like another recording of the speaker, 1 by their instruct, 1 freely" in printed
    assert "synthetic" in printed and "voice_accuracy" in printed


def test_the_real_column_is_what_the_recogniser_hears(evaluate, recognizer, data):
    """The figure beside the synthetic one is that of `stentor evaluate RECOGNISER` itself."""
    _, scores, _ = evaluate("--recognizer", recognizer)
    from stentor.commands.evaluate.command import evaluate as score
    from stentor.commands.evaluate_options import EvaluateOptions

    out = data.parent / "alone.json"
    score(EvaluateOptions(data=str(data), model=str(recognizer), json=out))
    alone = json.loads(out.read_text())["eval"]["wer"]
    assert scores["eval"]["wer_real"]["errors"] == alone["errors"]
    assert scores["eval"]["wer_real"]["total"] == alone["total"]


def test_an_evaluation_repeats_exactly_and_follows_its_settings(evaluate, tmp_path):
    def sounds(folder, *options):
        _, scores, rows = evaluate("--audio", tmp_path / folder, *options)
        return scores, [open(row["output"]["audio"], "rb").read() for row in rows]

    first, one = sounds("a")
    second, two = sounds("b")
    assert one == two and first["eval"]["loss"] == second["eval"]["loss"]
    rates = [f"speaking_rate{column}" for column in ("", "_codec", "_real")]
    assert list(first["eval"]) == ["loss", *rates, "real_time_factor"]  # nobody listens
    other, three = sounds("c", "--generation", "steps=2,guidance=0")
    assert other["generation"]["steps"] == 2 and other["generation"]["guidance"] == 0
    assert other["generation"]["t_shift"] == first["generation"]["t_shift"] and three != one


def test_languages_are_scored_apart(evaluate, data, recognizer, tmp_path):
    lines = [json.loads(line) for line in data.read_text().splitlines()[:4]]
    for i, record in enumerate(lines):
        record |= {"language": ["en", "de"][i % 2], "audio_path": str(data.parent / record["audio_path"])}
    source = tmp_path / "two.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in lines))
    printed, scores, _ = evaluate("--recognizer", recognizer, source=source)
    parts = scores["by"]["language"]
    assert set(parts) == {"en", "de"} and parts["en"]["wer"]["items"] == 2
    errors = sum(part["wer_real"]["errors"] for part in parts.values())
    assert errors == scores["eval"]["wer_real"]["errors"] and "language de: wer" in printed


def test_voice_and_length(evaluate):
    _, scores, rows = evaluate("--voice", "none", "--length", "rule")
    assert scores["voices"] == {"none": 9}
    assert len({row["output"]["seconds"] for row in rows}) == 1, "the same text, and nothing else that says how long"
    _, scores, _ = evaluate("--voice", "reference")
    assert scores["voices"] == {"reference": 8, "none": 1}


def test_token_shards_have_no_real_audio(evaluate, model, data, recognizer, tmp_path):
    command = f"prepare tokens {data},limit=4 --codec {model} --to {tmp_path}/shards --min-shards 1 --device cpu"
    assert main(command.split()) == 0
    source = f"type=shards,path={tmp_path}/shards"
    _, scores, rows = evaluate("--recognizer", recognizer, "--embedder", "cepstra", source=source)
    assert "wer_codec" in scores["eval"] and "wer_real" not in scores["eval"]
    assert "voice_accuracy_codec" in scores["eval"] and "voice_accuracy_real" not in scores["eval"]
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--voice", "hers"], "Unknown --voice hers; known: auto, reference, instruct, none"),
        (["--length", "long"], "Unknown --length long"),
        (["--normalizer", "english"], "Unknown --normalizer english"),
        (["--normalizer", "none,fleurs"], "--normalizer takes several names for recognisers only"),
        (["--generation", "step=3"], "did you mean 'steps'?"),
        (["--generation", "steps=0"], "steps"),
        (["--judge", "utmost"], "unknown type 'utmost'"),
        (["--judge", "recognizer"], "from"),
        (["--recognizer", "nowhere"], "There is no model nowhere"),
        (["--embedder", "cepstra", "--judge", "cepstra"], "More than one embedder is given"),
    ],
)
def test_wrong_options(model, data, capsys, monkeypatch, options, message):
    """They are found before anything is spoken."""
    monkeypatch.setattr(Speaker, "speak", lambda *args: pytest.fail("something was spoken"))
    assert main(["evaluate", str(model), "--data", str(data), *options]) == 2
    assert message in capsys.readouterr().err


def test_options_of_models_that_speak(recognizer, data, capsys):
    assert main(["evaluate", str(recognizer), "--data", str(data), "--embedder", "cepstra"]) == 2
    assert "--embedder is for the task speak and --audio-from, not for the task transcribe" in capsys.readouterr().err


def test_a_model_without_a_codec(model, data, tmp_path, capsys):
    shutil.copytree(model, tmp_path / "silent")
    shutil.rmtree(tmp_path / "silent" / "audio_tokenizer")
    assert main(["evaluate", str(tmp_path / "silent"), "--data", str(data)]) in (2, 3)
    assert "codec" in capsys.readouterr().err


@pytest.mark.slow
def test_on_a_cluster_it_goes_on_after_a_kill(ray_cluster, evaluate, model, data, recognizer, tmp_path, monkeypatch):
    from stentor.commands.evaluate import on_cluster, speech_rows

    monkeypatch.setattr(speech_rows, "TOGETHER", 2)
    options = ["--recognizer", str(recognizer), "--embedder", "cepstra", "--audio", str(tmp_path / "wavs")]

    def outcome(*more):
        _, scores, rows = evaluate(*options, *more)
        assert scores["eval"].pop("real_time_factor")["value"] > 0
        return scores, rows, [open(row["output"]["audio"], "rb").read() for row in rows]

    local = outcome()
    shutil.rmtree(tmp_path / "wavs")
    real = on_cluster.JournalWriter.write

    def write(self, *results):
        if len(self.journal) == 4:
            raise KeyError("killed")
        real(self, *results)

    with monkeypatch.context() as patch:
        patch.setattr(on_cluster.JournalWriter, "write", write)
        command = ["evaluate", str(model), "--data", str(data), "--json", str(tmp_path / "scores.json"), *options]
        assert main([*command, "--ray", ray_cluster]) == 1
    assert len(list((tmp_path / "wavs").iterdir())) == 4
    journal = tmp_path / "scores.json.part"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))  # killed within a group
    assert outcome("--ray", ray_cluster) == local
    assert not journal.exists()


def test_a_recogniser_is_scored_after_several_normalizers(recognizer, data, tmp_path, capsys):
    rows = [json.loads(line) | {"text": "रात हो गई Don't"} for line in data.read_text().splitlines()]
    (data.parent / "hindi.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["evaluate", str(recognizer), "--data", f"type=jsonl,path={data.parent / 'hindi.jsonl'},language=hi"]
    out, names = tmp_path / "scores.json", ["multilingual", "none", "whisper_basic"]
    assert main([*command, "--normalizer", ",".join([*names, "none"]), "--json", str(out)]) == 0
    figures, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert list(figures["normalizers"]) == names and figures["eval"]["wer"] == figures["normalizers"][names[0]]["wer"]
    totals = [figures["normalizers"][name]["wer"]["total"] / len(rows) for name in names]
    assert totals == [4, 4, 6], "whisper_basic divides रात and Don't"
    assert all(f"\n  {name} " in printed for name in names)
    assert main([*command, "--normalizer", "none,basic"]) == 2
    assert "Unknown --normalizer basic; known: auto, multilingual" in capsys.readouterr().err
