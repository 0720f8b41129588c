"""An export is loaded back and compared with the model that was trained before a run or a copy is called done."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.cli import main
from stentor.data.batch import Example
from stentor.export import probe as probes
from stentor.export import verify
from stentor.export.probe import FULL, HALF, Different, ModelOutputs, Probe
from stentor.export.verify import same_tensors
from stentor.inference.load import load
from stentor.models.speech_llm.config import SpeechLLM
from stentor.tasks.transcribe import Transcribe
from stentor.version import EXPORT_FORMAT, RUN_FORMAT, format_keys

torch.set_num_threads(1)


def damage(file, change=lambda t: t + 0.1 * torch.randn_like(t)):
    """Change the largest tensor of a file of weights."""
    tensors = load_file(file)
    name = max(tensors, key=lambda n: tensors[n].numel())
    tensors[name] = change(tensors[name])
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture(scope="module")
def trained(corpus, tiny_text, tmp_path_factory):
    """A run of tied weights that exports their moving average."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(tiny_text.format(folder=corpus, runs=folder / "runs", dropout=0.0))
    assert main(["train", str(folder / "tiny.yaml"), "train.steps=3", "train.ema=0.5", "name=tiny"]) == 0
    return folder


def test_a_run_says_that_its_export_was_checked(trained):
    run = trained / "runs" / "tiny"
    facts = json.loads((run / "results.json").read_text())["export"]
    assert facts["clips"] == 4 and facts["rounded"] == 0
    wer = facts["wer"]
    assert (
        wer["model"] == wer["export"] == json.loads((run / "results.json").read_text())["eval"]["dev"]["wer"]["value"]
    )
    assert facts["checked"] == f"export checked on 4 clips: WER {wer['model']:.2%} = {wer['export']:.2%}"
    assert "Export checked on 4 clips: WER" in (run / "log.txt").read_text()


def test_an_export_that_differs_fails_the_run(trained, monkeypatch, capsys):
    save = SpeechLLM.save

    def wrong(self, bundle, state, folder):
        save(self, bundle, state, folder)
        if folder.parent.name == "damaged":  # not those of checkpoints
            damage(folder / "model.safetensors")

    monkeypatch.setattr(SpeechLLM, "save", wrong)
    command = ["train", str(trained / "tiny.yaml"), "train.steps=3", "name=damaged"]
    assert main(command) == 1
    message = capsys.readouterr().err
    run = trained / "runs" / "damaged"
    assert "The export does not do what the trained model does: on 4 clips its loss `" in message
    assert f"It is kept as {run / 'export-wrong'} and should not be used" in message and "Traceback" not in message
    assert (run / "export-wrong" / "model.safetensors").exists()
    assert not (run / "export").exists() and not (run / "results.json").exists()

    monkeypatch.setattr(SpeechLLM, "save", save)  # and the same command finishes once it is mended
    assert main(command) == 0
    assert json.loads((run / "results.json").read_text())["export"]["clips"] == 4


@pytest.mark.parametrize("merge", [[], ["--merge"]])
def test_copies_are_checked(trained, tmp_path, monkeypatch, capsys, merge):
    model = str(trained / "runs" / "tiny")
    assert main(["export", model, "--to", str(tmp_path / "good"), *merge]) == 0
    message = capsys.readouterr().out
    assert "export checked on 4 clips: WER" in message
    assert {"training_config.json", "train_results.json", "eval_results.json"} <= {
        p.name for p in (tmp_path / "good").iterdir()
    }
    config = tmp_path / "good" / "training_config.json"
    assert format_keys(EXPORT_FORMAT).items() <= json.loads(config.read_text()).items()
    results = json.loads((trained / "runs" / "tiny" / "results.json").read_text())
    assert format_keys(RUN_FORMAT).items() <= results.items()
    assert main(["config", "check", str(config)]) == 0  # it is a run file

    if merge:
        save = SpeechLLM.save_merged
        monkeypatch.setattr(SpeechLLM, "save_merged", lambda s, b, f: (save(s, b, f), damage(f / "model.safetensors")))
        why = "on 4 clips its loss"
    else:
        save = shutil.copytree
        monkeypatch.setattr(
            shutil, "copytree", lambda s, to, **options: (save(s, to, **options), damage(to / "model.safetensors"))
        )
        why = "model.safetensors is not what was copied"
    assert main(["export", model, "--to", str(tmp_path / "bad"), *merge]) == 1
    message = capsys.readouterr().err
    assert "The copy does not do what the model does" in message and why in message
    assert {p.name for p in tmp_path.iterdir()} == {"good", "bad-wrong"}


def test_large_models_are_compared_by_their_tensors(trained, tmp_path):
    folder = trained / "runs" / "tiny" / "export"
    bundle = load(folder, "cpu").bundle
    weights = {n: t for n, t in bundle.model.state_dict().items() if n in bundle.family.exported_tensor_names(bundle)}
    assert f"({len(weights)} are those in memory)" in str(same_tensors(bundle, weights, folder))
    for change, message in {
        lambda t: t + 1e-4: "1 of its .* tensors are not those in memory",
        lambda t: t * float("nan"): "holds NaN",
    }.items():
        bad = shutil.copytree(folder, tmp_path / "bad", dirs_exist_ok=True)
        damage(bad / "model.safetensors", change)
        with pytest.raises(Different, match=message):
            same_tensors(bundle, weights, bad)
    (bad / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(Different, match="cannot be read"):
        same_tensors(bundle, weights, bad)


def probe(count=16):
    clips = [Example(f"clip{i}", np.zeros(16000, np.float32), "one two") for i in range(count)]
    return Probe(Transcribe(), clips)


def outputs(texts, log_prob=-0.5, loss=1.0):
    return ModelOutputs([{"text": text, "log_prob": log_prob} for text in texts], {"text": loss})


def test_rounding_is_told_from_a_wrong_export():
    same = outputs(["one two"] * 16)
    assert str(probe().compare(same, same, FULL)) == "export checked on 16 clips: WER 0.00% = 0.00%"
    some = outputs(["one too"] * 2 + ["one two"] * 14, -0.505)
    agreement = probe().compare(same, some, FULL)
    assert agreement.facts["rounded"] == 2 and "WER 0.00% against 6.25%; 2 of the texts differ by rounding" in str(
        agreement
    )
    for other, allowed, message in (
        (
            outputs(["one too"] * 3 + ["one two"] * 13),
            FULL,
            "3 of 16 clips give another text, for example clip0: 'one too'",
        ),
        (replace(some, outputs=outputs([""] + ["one two"] * 15, 0.0).outputs), FULL, "1 of 16 clips give another text"),
        (outputs(["one two"] * 16, loss=1.001), FULL, r"its loss `text` is 1\.001 and not 1 "),
        (outputs(["one two"] * 16, loss=float("nan")), HALF, "its loss `text` is nan"),
        (outputs(["one too"] * 5 + ["one two"] * 11), HALF, "5 of 16 clips"),
    ):
        with pytest.raises(Different, match=message):
            probe().compare(same, other, allowed)
    assert probe().compare(same, outputs(["one two"] * 16, loss=1.001), HALF).facts["rounded"] == 0


def test_a_run_without_evaluation_data_is_checked_with_the_built_in_voice(trained, monkeypatch):
    monkeypatch.setattr(probes, "TEXTS", ("one", "two"))
    monkeypatch.setattr(verify, "spread", lambda *records: ([], []))
    assert main(["train", str(trained / "tiny.yaml"), "train.steps=1", "name=alone"]) == 0
    facts = json.loads((trained / "runs" / "alone" / "results.json").read_text())["export"]
    assert facts["clips"] == 2
