import json

import pytest

from stentor.publish.card import write_card

CONFIG = {
    "name": "digits_*small*",
    "task": {"type": "transcribe"},
    "model": {"type": "speech_llm", "encoder": {"from": "openai/whisper-tiny"}, "llm": {"from": "/home/me/llm"}},
    "data": {
        "train": [
            {"type": "jsonl", "path": "/home/me/secret/train.jsonl", "language": "en"},
            {"type": "join", "source": {"type": "hub", "name": "owner/speech", "language": "de"}},
        ],
        "eval": {"dev": {"type": "jsonl", "path": "dev.jsonl"}},
        "test": {"clean": {"type": "hub", "name": "owner/benchmark", "split": "test"}},
        "max_seconds": 20.0,
    },
    "optim": {"type": "adamw", "lr": 1e-3},
    "train": {"use": "best"},
}


@pytest.fixture
def results(run_folder):
    results = json.loads((run_folder / "results.json").read_text())
    results["eval"] = dict(zip(("dev", "clean"), results["eval"].values()))
    return results


def test_the_hub_can_read_it(tmp_path, results):
    from huggingface_hub import ModelCard, parse_eval_result_entries

    from stentor.data.yaml_text import read_yaml

    path = write_card(tmp_path, CONFIG, results)
    assert path == tmp_path / "README.md"
    data = ModelCard.load(path).data
    assert data.library_name == "stentor"
    assert data.pipeline_tag == "automatic-speech-recognition"
    assert data.language == ["de", "en"]
    assert data.base_model == ["openai/whisper-tiny"]
    assert data.datasets == ["owner/speech"]
    assert {"stentor", "transcribe", "speech_llm"} <= set(data.tags)
    wer = next(r for r in data.eval_results if r.dataset_name == "clean" and r.metric_type == "wer")
    score = results["eval"]["clean"]["wer"]
    assert wer.metric_value == round(100 * score["value"], 2)
    assert (wer.dataset_type, wer.dataset_split) == ("owner/benchmark", "test")
    # Only benchmarks on the Hub have a page that such a file could belong to.
    assert [p.name for p in (tmp_path / ".eval_results").iterdir()] == ["clean.yaml"]
    entries = parse_eval_result_entries(read_yaml((tmp_path / ".eval_results" / "clean.yaml").read_text()))
    [entry] = entries  # a benchmark's task has one value
    assert (entry.dataset_id, entry.task_id, entry.value) == ("owner/benchmark", "default", wer.metric_value)
    assert entry.notes.startswith("WER in %, 95 % interval")
    write_card(tmp_path, CONFIG, results, lambda source: f"clean_{source['split']}")
    assert "task_id: clean_test" in (tmp_path / ".eval_results" / "clean.yaml").read_text()


def test_figures_come_with_interval_and_counts(tmp_path, results):
    text = write_card(tmp_path, CONFIG, results).read_text()
    score = results["eval"]["dev"]["wer"]
    bounds = f"{100 * score['low']:.2f}–{100 * score['high']:.2f} %"
    assert f"| dev | WER | {100 * score['value']:.2f} % | {bounds} | {score['errors']} / {score['total']} |" in text
    assert "picked by their score on `dev`" in text
    assert 'stentor.load("FOLDER")' in text  # the name is not one that could be typed
    assert "(3,000 parameters, of which 1,000 were trained)" in text


def test_nothing_of_the_trainers_machine_and_no_licence_is_claimed(tmp_path, results):
    text = write_card(tmp_path, CONFIG, results).read_text()
    assert "/home/me" not in text
    assert "\nlicense:" not in text
    assert "# digits\\_\\*small\\*" in text


def test_limits_follow_the_data(tmp_path, results):
    synthetic = {**CONFIG, "data": {"train": [{"type": "synth"}], "eval": {}, "test": {}, "max_seconds": 20.0}}
    text = write_card(tmp_path, synthetic, {**results, "eval": {}}).read_text()
    assert "synthetic voice only" in text
    assert "not scored on any held-out data" in text
    assert not (tmp_path / ".eval_results").exists()
    assert "synthetic" not in write_card(tmp_path, CONFIG, results).read_text()


def test_each_set_is_a_data_set_of_its_own(tmp_path, results):
    """As the Hub's client reads the metadata: two local sets of one type, and two parts of one data set."""
    from huggingface_hub import ModelCard

    for dev, clean in (
        ({"type": "jsonl", "path": "dev.jsonl"}, {"type": "jsonl", "path": "clean.jsonl"}),
        ({"type": "hub", "name": "o/b", "split": "test"}, {"type": "hub", "name": "o/b", "split": "test", "limit": 9}),
        ({"type": "hub", "name": "o/b", "config": "de"}, {"type": "hub", "name": "o/b", "config": "en"}),
    ):
        data = {**CONFIG["data"], "eval": {"dev": dev}, "test": {"clean": clean}}
        entries = ModelCard.load(write_card(tmp_path, {**CONFIG, "data": data}, results)).data.to_dict()["model-index"]
        sets = {r["dataset"]["name"]: [m["type"] for m in r["metrics"]] for r in entries[0]["results"]}
        assert sets == {name: list(results["eval"][name]) for name in ("dev", "clean")}


def test_the_longest_recording_is_that_of_the_data(tmp_path, results):
    text = write_card(tmp_path, CONFIG, results).read_text()
    assert "longest recording" not in text and "20 s" not in text  # a limit says nothing about the data
    results["data"]["longest_seconds"] = 3.21
    assert (
        "The longest recording that it was trained on has 3.2 s." in write_card(tmp_path, CONFIG, results).read_text()
    )
