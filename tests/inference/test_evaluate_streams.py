"""`stentor evaluate --stream`: its figures in the report of a run."""

import json

import numpy as np
import pytest
import soundfile

RATE = 16000


@pytest.fixture
def data(tmp_path):
    """Two recordings, in which a constant tone after silence is "level 20" and a weaker one is not."""
    rows = []
    for name, level in (("a", 0.1), ("b", 0.05)):
        time = np.arange(2 * RATE) / RATE
        tone = level * 2**0.5 * np.sin(2 * np.pi * 500 * time) * (time > 0.04)
        soundfile.write(tmp_path / f"{name}.wav", tone, RATE)
        words = [{"word": "level", "start": 0.1, "end": 0.4}, {"word": "20", "start": 0.5, "end": 2.0}]
        rows.append({"id": name, "audio_path": f"{name}.wav", "text": "level 20", "words": words})
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def charts_of(page):
    return json.loads(page.split('id="charts">', 1)[1].split("</script>", 1)[0])


def test_figures_are_in_the_report(run, export, data, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "resolved.yaml").write_text("name: mine\n")
    options = ["--data", data, "--report", folder]
    code, _, err = run("evaluate", export(task="words"), *options, "--stream", "0.5,1", "--json", tmp_path / "f.json")
    assert code == 0, err
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["policy"] == "LocalAgreement" and list(figures["stream"]) == ["0.5", "1"]
    rows = [json.loads(line) for line in (folder / "streams.jsonl").read_text().splitlines()]
    assert [row["delay"] for row in rows] == [0.5, 1.0]
    for row in rows:
        assert row["model"] == "model"  # the folder's name, not where it is
        measured = figures["stream"][f"{row['delay']:g}"]
        assert row["scores"] == {name: score["value"] for name, score in measured.items()}
    (chart,) = charts_of((folder / "report.html").read_text())
    assert chart["lines"][0]["name"] == "LocalAgreement" and chart["unit"] == "s"
    assert len(chart["lines"][0]["xs"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "."], "--report is for --stream, not for the task of a model: leave it out."),
        (["--stream", "1", "--report", "nowhere"], "is not a run folder"),
        (["--stream", "1", "--normalizer", "none,multilingual"], "--normalizer takes one name with --stream."),
        (["--stream", "1", "--tune"], "--tune and --stream do not go together: leave out one of them."),
        (["--stream", "chunk="], "give seconds"),
        (["--stream", "nan"], "must be above 0 s"),
    ],
)
def test_what_is_refused(run, export, data, options, message):
    code, _, err = run("evaluate", export(), "--data", data, *options)
    assert code == 2 and message in " ".join(err.replace("│", " ").split())


def test_records_without_word_times(run, export, data, tmp_path):
    """The error names the task that scores their text, also of streams."""
    rows = [{**json.loads(line), "words": None} for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = export(task="words")
    for options in ([], ["--stream", "1"]):
        code, _, err = run("evaluate", model, "--data", data, *options)
        assert code == 3 and "--task transcribe" in err
        code, out, err = run("evaluate", model, "--data", data, *options, "--task", "transcribe")
        assert code == 0 and "50.00 %" in out, err
