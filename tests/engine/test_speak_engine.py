"""The task `speak` through a whole run: the loss over all records, a few of them spoken, and what is left of them."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.cli import main
from stentor.data.audio_base64 import decode_audio, is_encoded_audio
from stentor.export.probe import FULL, Different, losses_of, same_speech
from stentor.export.verify import check_copy, probe_model
from stentor.inference.load import load

torch.set_num_threads(1)

RUN = """\
task: {{type: speak, samples: 2, generation: {{steps: 4}}}}
model:
  type: omnivoice
  llm: {{config: {{model_type: qwen3, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
       num_attention_heads: 2, num_key_value_heads: 2, head_dim: 16, max_position_embeddings: 1024}}}}
  text: {{type: characters}}
  codec: {{type: mel_rvq, codebooks: 3, entries: 16, iterations: 2}}
data:
  train: [{{type: jsonl, path: "{corpus}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{corpus}/dev.jsonl"}}}}
  batch_tokens: 400
  workers: 0
optim: {{type: adamw, lr: 1e-3}}
schedule: {{type: constant}}
train: {{steps: 4, log_every: 1, eval_every: 2, save_every: 2, device: cpu, dry_run: false}}
output: "{runs}"
"""


@pytest.fixture(scope="module")
def config(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("speak")
    (folder / "speak.yaml").write_text(RUN.format(corpus=corpus, runs=folder / "runs"))
    return folder / "speak.yaml"


@pytest.fixture(scope="module")
def trained(config):
    """A finished run; its folder."""
    assert main(["train", str(config), "name=whole"]) == 0
    return config.parent / "runs" / "whole"


def predictions(folder, name="dev"):
    return [json.loads(line) for line in (folder / "predictions" / f"{name}.jsonl").read_text().splitlines()]


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_the_loss_is_the_first_score_and_over_all_records(trained, rows):
    scores = results(trained)["eval"]["dev"]
    assert next(iter(scores)) == "loss" and not any("perplexity" in metric for metric in scores)
    assert scores["loss"]["details"]["items"] == 4 and set(scores["loss"]["details"]["targets"]) == {
        "codes_0",
        "codes_1",
        "codes_2",
    }
    (*_, last) = rows(trained, "eval/dev/loss")
    shares = np.array([8, 6, 4]) / 18  # OmniVoice's eight, stretched to three
    parts = [last[f"eval/dev/loss_codes_{c}"] for c in range(3)]
    assert last["eval/dev/loss"] == pytest.approx(float(shares @ parts)) == pytest.approx(scores["loss"]["value"])


def test_a_few_records_are_spoken_always_the_same(trained):
    spoken = predictions(trained)
    assert len(spoken) == 2
    samples = [json.loads(line) for line in (trained / "samples.jsonl").read_text().splitlines()]
    assert sorted((r["step"], r["id"]) for r in samples) == [(s, p["id"]) for s in (2, 4) for p in spoken]
    for prediction in spoken:
        output = prediction["output"]
        assert is_encoded_audio(output["audio"]) and is_encoded_audio(output["codec"])
        assert len(decode_audio(output["audio"])) / 16000 == pytest.approx(output["seconds"], abs=1e-3)
        assert abs(output["seconds"] - prediction["seconds"]) < 0.06  # as long as the recording
        assert output["prompt_seconds"] > 0  # there is no instruct: it goes on in the voice of its beginning


def test_samples_are_files_that_the_rows_name(trained):
    import soundfile

    for line in (trained / "samples.jsonl").read_text().splitlines():
        row = json.loads(line)
        for key in ("audio", "codec"):
            sound = row["output"][key]
            samples, rate = soundfile.read(trained / sound["file"])
            assert rate == sound["rate"] == 16000 and len(samples)
        assert row["output"]["audio"]["file"].startswith(f"samples/step-{row['step']:06d}/dev/")


def test_a_run_that_was_cut_off_goes_on_exactly(config, trained, rows, capsys):
    """Losses, masks and samples of the second half are those of the run in one go."""
    assert main(["train", str(config), "name=halves", "train.steps=2"]) == 0
    capsys.readouterr()
    assert main(["train", str(config), "name=halves", "train.steps=4"]) == 0
    assert "Resuming from step 2" in capsys.readouterr().out
    halves = trained.parent / "halves"
    keys = ("step", "train/loss", "train/codes_0", "train/codes_2", "grad_norm")
    assert [[r[k] for k in keys] for r in rows(halves)] == [[r[k] for k in keys] for r in rows(trained)]
    assert results(halves)["eval"] == results(trained)["eval"]
    assert predictions(halves) == predictions(trained)
    straight, cut = load_file(trained / "export/model.safetensors"), load_file(halves / "export/model.safetensors")
    assert all(torch.equal(straight[name], cut[name]) for name in straight) and straight.keys() == cut.keys()


@pytest.mark.slow
def test_samples_of_steps_that_are_taken_back_are_forgotten(config, trained):
    """A run whose last checkpoint is damaged goes on from the one before."""
    folder = trained.parent / "again"
    shutil.copytree(trained, folder)
    (folder / "results.json").unlink()
    shutil.rmtree(folder / "checkpoints" / "step-000004")
    (folder / "checkpoints" / "latest").write_text("step-000002\n")
    (folder / "samples" / "step-000004" / "dev" / "stray.wav").write_bytes(b"")
    assert main(["train", str(config), "name=again"]) == 0
    assert not (folder / "samples" / "step-000004" / "dev" / "stray.wav").exists()
    assert (folder / "samples.jsonl").read_text() == (trained / "samples.jsonl").read_text()


def score(model, corpus, batch_tokens):
    from stentor.commands.evaluate.records import records
    from stentor.commands.evaluate_options import EvaluateOptions
    from stentor.config.load import parse_source
    from stentor.engine.device import Communicator, accelerator
    from stentor.engine.evaluate import EvalOptions, EvalSet, EvalSetup, evaluate
    from stentor.engine.section import Train

    options = EvaluateOptions(data=str(corpus / "train.jsonl"), batch_tokens=batch_tokens)
    plan, dropped, _ = records(model, model.task, parse_source(options.data), options)
    device = accelerator(Train(device="cpu"))
    setup = EvalSetup(model.bundle, model.task, losses_of(model), device, Communicator(1), EvalOptions())
    return evaluate(setup, EvalSet("train", plan, dropped))


def test_two_evaluations_find_the_same_and_so_do_other_batches(trained, corpus):
    model = load(trained / "export")
    model.task.samples = 0
    scores, means, _ = score(model, corpus, 400)
    again, means_again, _ = score(model, corpus, 400)
    assert scores["loss"].value == again["loss"].value and means == means_again
    other, _, spoken = score(model, corpus, 4000)
    assert other["loss"].value == pytest.approx(scores["loss"].value, abs=1e-6) and not spoken
    assert other["loss"].details == scores["loss"].details and scores["loss"].details["items"] == 16


def damaged(trained, tmp_path, file):
    """A copy of the export with the rows of its tensors in another order."""
    folder = tmp_path / file.replace("/", "-")
    shutil.copytree(trained / "export", folder)
    tensors = load_file(folder / file)
    save_file(
        {n: t.flip(0).contiguous() if t.is_floating_point() else t for n, t in tensors.items()},
        folder / file,
        {"format": "pt"},
    )
    return folder


def test_an_export_that_does_something_else_is_found(trained, tmp_path):
    model = load(trained / "export")
    probe, original = probe_model(model)
    assert probe.metric == "loss" and len(original.outputs) == 4
    assert str(check_copy(probe, original, trained / "export")).endswith("the same codec tokens for 4 utterances")

    with pytest.raises(Different, match=r"loss `codes_\d`"):
        check_copy(probe, original, damaged(trained, tmp_path, "model.safetensors"))


def test_answers_are_compared_by_tokens_and_sound():
    codes, sound = np.arange(6).reshape(2, 3), np.zeros(8, np.float32)
    one = {"codes": codes, "sound": sound}
    assert same_speech(one, {"codes": codes.copy(), "sound": sound + 1e-4})
    assert not same_speech(one, {"codes": codes + 1, "sound": sound}) and not same_speech(
        one, {"codes": codes[:1], "sound": sound}
    )
    assert not same_speech(one, {"codes": codes, "sound": sound + 0.1}) and not same_speech(
        one, {"codes": codes, "sound": None}
    )
    assert FULL.share * 4 < 1  # so that one utterance of four is enough


def test_a_model_is_probed_with_tokens_at_random_where_there_are_no_records(trained, tmp_path):
    shutil.copytree(trained / "export", tmp_path / "export")
    for name in ("training_config.json",):
        facts = json.loads((tmp_path / "export" / name).read_text())
        facts["data"]["eval"] = {}
        (tmp_path / "export" / name).write_text(json.dumps(facts))
    probe, original = probe_model(load(tmp_path / "export"))
    assert [e.extra["codes"].shape for e in probe.examples] == [(3, 20), (3, 30), (3, 40), (3, 50)]
    assert set(original.loss) == {"codes_0", "codes_1", "codes_2"}
    check_copy(probe, original, trained / "export")
    with pytest.raises(Different, match="4 of 4 utterances come out with other codec tokens or another sound"):
        check_copy(probe, original, damaged(trained, tmp_path, "audio_tokenizer/model.safetensors"))


def test_records_of_the_wrong_size_are_counted(config):
    from stentor.commands.train import prepare, summary
    from stentor.config.load import load as load_config

    limits = ["task.min_tokens=40", "task.max_tokens=60"]
    setup = prepare(load_config(config, limits).config, lambda line: None)
    dropped, held_out = setup.train_data.dropped, setup.evals[0].dropped
    assert dropped.reasons.keys() == {"too_few_tokens", "too_many_tokens"}
    assert setup.train_data.records + sum(dropped.reasons.values()) == 16 and held_out.reasons.total()
    costs = [setup.bundle.processor.tokens(c, c.duration) for c in setup.train_data.cuts()]
    assert costs and all(40 <= cost <= 60 for cost in costs)
    line, of_dev = [line for line in summary(setup) if "(too_few_tokens)" in line]
    assert of_dev.startswith("Dropped from dev: ") and "fewer than `task.min_tokens` (40)" in line


def test_weights_for_another_number_of_codebooks_are_refused(config, capsys):
    assert main(["train", str(config), "name=bad", "losses={codes: {type: codebook, weights: [4, 2]}}"]) == 2
    assert "losses.codes.weights: 2 weights for a codec with 3 codebooks" in capsys.readouterr().err


@pytest.mark.slow
def test_the_plan_of_a_run(config, capsys, tmp_path):
    assert main(["train", str(config), "name=plan", "--plan-only"]) == 0
    output = capsys.readouterr().out
    assert "audio_heads" in output and "activations" in output and "cannot be watched" not in output


@pytest.mark.slow
def test_two_processes_do_what_one_does_in_two_halves(config, cli, rows):
    """Each codebook's sum is divided by its count over all processes; each record is scored and spoken once."""
    options = ["train.steps=2", "train.eval_every=2"]
    assert main(["train", str(config), "name=one", "train.accumulate=2", *options]) == 0
    cli("train", config, "name=two", *options, processes=2)
    one, two = config.parent / "runs" / "one", config.parent / "runs" / "two"
    for key in ("train/loss", "train/codes_0", "train/codes_2", "grad_norm"):
        assert [r[key] for r in rows(one)] == pytest.approx([r[key] for r in rows(two)], rel=1e-5)
    losses = [results(folder)["eval"]["dev"]["loss"] for folder in (one, two)]
    assert losses[0]["details"] == losses[1]["details"] and losses[0]["details"]["items"] == 4
    assert losses[0]["value"] == pytest.approx(losses[1]["value"], rel=1e-5)
    assert [p["id"] for p in predictions(one)] == [p["id"] for p in predictions(two)]
