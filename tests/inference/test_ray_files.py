"""Many files on a Ray cluster: the outputs are those of the local command, and what is there is left out."""

import json

import pytest

from stentor.cli import main

pytestmark = pytest.mark.long


@pytest.fixture
def files(corpus, tmp_path):
    """Seven clips and one that cannot be read, by their folder."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for i in range(7):
        (folder / f"{i}.wav").symlink_to(corpus / f"train{i}.wav")
    (folder / "3b.wav").write_bytes(b"RIFF this is no audio")
    return folder


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
    """They come by the clock, and a cluster takes its time to start."""
    monkeypatch.setattr("stentor.pipeline.progress.EVERY", float("inf"))


def outputs(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


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
        (["--jobs", "2"], "--jobs requires --ray"),
        (["--gpus-per-worker", "0.5"], "--gpus-per-worker requires --ray"),
    ):
        assert main(["diarize", "model", str(files), "--device", "cpu", *more]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_alignments_are_those_of_this_machine(ray_cluster, ctc_export, corpus, files, tmp_path, capsys):
    for i, line in enumerate((corpus / "train.jsonl").read_text().splitlines()[:7]):
        (files / f"{i}.txt").write_text(json.loads(line)["text"])
    command = ["align", str(ctc_export), str(files), "--format", "json,textgrid", "--device", "cpu", "--out"]
    said = []
    for name, more in (("local", []), ("ray", ["--ray", ray_cluster])):
        assert main([*command, str(tmp_path / name), *more]) == 3
        said.append([line for line in capsys.readouterr().err.splitlines() if "waiting for the cluster" not in line])
    assert said[0] == said[1] and "3b.wav" in said[0][0] and "1 of 8 records could not be aligned" in said[0][-1]
    assert outputs(tmp_path / "ray") == outputs(tmp_path / "local") and len(outputs(tmp_path / "ray")) == 14


@pytest.fixture(scope="session")
def untrained_diarizer(tmp_path_factory):
    """The export folder of a small model of random weights that finds some speakers in everything."""
    import torch

    from stentor.losses.base import Loss
    from stentor.models.base import Family
    from stentor.tasks.base import Task

    torch.manual_seed(0)
    task = Task.model_validate({"type": "diarize", "labels": {"type": "speaker", "speakers": 3}, "chunk": 6})
    section = {"type": "transformer", "shared": {"d_model": 16, "layers": 1, "heads": 2}, "features": {"subsample": 10}}
    family = Family.model_validate(section)
    bundle = family.build(task.requirements({"pil": Loss.model_validate("pit_bce")}))
    folder = tmp_path_factory.mktemp("diarizer") / "export"
    family.save(bundle, bundle.model.state_dict(), folder)
    (folder / "training_config.json").write_text(json.dumps({"task": task.model_dump(mode="json")}))
    return folder


def test_diarizations_are_those_of_this_machine(ray_cluster, untrained_diarizer, files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(files.parent)  # relative paths are of this folder
    command = ["diarize", str(untrained_diarizer), files.name, "--format", "json,rttm", "--device", "cpu", "--out"]
    said = []
    for name, more in (("local", []), ("ray", ["--ray", ray_cluster, "--jobs", "1"])):
        assert main([*command, str(tmp_path / name), *more]) == 3
        said.append([line for line in capsys.readouterr().err.splitlines() if "waiting for the cluster" not in line])
    assert said[0] == said[1] and "3b.wav" in said[0][0]
    assert outputs(tmp_path / "ray") == outputs(tmp_path / "local") and len(outputs(tmp_path / "ray")) == 14
    assert all(b"SPEAKER" in content for name, content in outputs(tmp_path / "ray").items() if name.endswith(".rttm"))


def test_an_evaluation_goes_on_after_a_kill(ray_cluster, whisper, corpus, tmp_path, capsys, monkeypatch):
    from stentor.commands.evaluate import on_cluster

    monkeypatch.setattr(on_cluster, "GROUP_BATCHES", 1)
    data = f"{corpus / 'train.jsonl'},limit=6"
    command = ["evaluate", str(whisper), "--data", data, "--batch-tokens", "400", "--json"]
    assert main([*command, str(tmp_path / "local.json")]) == 0
    local = capsys.readouterr().out
    command += [str(tmp_path / "ray.json"), "--ray", ray_cluster, "--jobs", "1"]
    real, journal = on_cluster.JournalWriter.write, tmp_path / "ray.json.part"

    def write(self, *results):
        if len(self.journal) == 2:
            raise KeyError("killed")
        real(self, *results)

    with monkeypatch.context() as patch:
        patch.setattr(on_cluster.JournalWriter, "write", write)
        assert main(command) == 1
    assert len(journal.read_text().splitlines()) == 3
    with open(journal, "a") as file:
        file.write('{"id": "train3", "rec')  # as if it had been killed while writing
    capsys.readouterr()
    assert main([*command, "--batch-tokens", "500"]) == 2
    assert "ray.json.part is from a command with other settings (batch_tokens was '400'" in capsys.readouterr().err
    assert main(command) == 0
    going_on, _, printed = capsys.readouterr().out.partition("\n")
    assert going_on.startswith("Resuming: 2 of ") and going_on.endswith(" batches are already done.")
    assert printed == local
    for suffix in (".json", ".predictions.jsonl"):
        assert (tmp_path / f"ray{suffix}").read_bytes() == (tmp_path / f"local{suffix}").read_bytes()
    assert not journal.exists()
