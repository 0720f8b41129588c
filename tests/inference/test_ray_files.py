"""Many files on a Ray cluster: the outputs are those of the local command, and what is there is left out."""

import pytest

from stentor.cli import main


@pytest.fixture
def files(corpus, tmp_path):
    """Seven clips and one that cannot be read, by their folder."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for i in range(7):
        (folder / f"{i}.wav").symlink_to(corpus / f"train{i}.wav")
    (folder / "3b.wav").write_bytes(b"RIFF this is no audio")
    return folder


def outputs(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_transcripts_are_those_of_this_machine(ray_cluster, whisper, files, tmp_path, capsys):
    command = ["transcribe", str(whisper), str(files), "--format", "json,srt", "--device", "cpu", "--out"]
    assert main([*command, str(tmp_path / "local")]) == 3
    local = capsys.readouterr().err.splitlines()
    assert main([*command, str(tmp_path / "ray"), "--ray", ray_cluster]) == 3
    said = [line for line in capsys.readouterr().err.splitlines() if "waiting for the cluster" not in line]
    assert said == local and "3b.wav" in local[0]
    assert outputs(tmp_path / "ray") == outputs(tmp_path / "local") and len(outputs(tmp_path / "ray")) == 14
    (tmp_path / "ray" / "5.srt").unlink()
    (tmp_path / "ray" / "4.json").write_text("kept")
    (files / "3b.wav").unlink()
    assert main([*command, str(tmp_path / "ray"), "--ray", ray_cluster, "--skip-existing"]) == 0
    again = outputs(tmp_path / "ray")
    assert again.pop("4.json") == b"kept" and again.items() <= outputs(tmp_path / "local").items()
    assert "6 of 7 files have their outputs already." in capsys.readouterr().err


def test_what_does_not_go_with_it(files, capsys):
    for more, message in (
        (["--ray", "auto"], "--ray is for files, with a folder for their outputs: give one with --out"),
        (["--jobs", "2"], "--jobs goes with --ray"),
        (["--gpus-per-worker", "0.5"], "--gpus-per-worker goes with --ray"),
    ):
        assert main(["diarize", "model", str(files), "--device", "cpu", *more]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_scores_are_those_of_this_machine(ray_cluster, whisper, corpus, tmp_path, capsys):
    command = ["evaluate", str(whisper), "--data", str(corpus / "train.jsonl"), "--batch-tokens", "400", "--json"]
    outcomes = []
    for name, more in (("local", []), ("ray", ["--ray", ray_cluster])):
        assert main([*command, str(tmp_path / f"{name}.json"), *more]) == 0
        outcomes.append(capsys.readouterr().out)
    assert outcomes[0] == outcomes[1] and "16 records" in outcomes[0]
    for suffix in (".json", ".predictions.jsonl"):
        assert (tmp_path / f"ray{suffix}").read_bytes() == (tmp_path / f"local{suffix}").read_bytes()
