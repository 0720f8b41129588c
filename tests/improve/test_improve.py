"""`stentor improve` through the command line, on tiny models and the built-in voice."""

import json
import re
import signal
from collections import Counter

import pytest

from run_events import wait_for
from stentor.cli import main
from stentor.errors import Stopped

SECTION = """
improve:
  rounds: 1
  unlabelled: [{{type: jsonl, path: "{unlabelled}", skip: 6}}]
  labels: {{stages: [], filters: [], max_error: 1.0, assurance: 0.5, device: cpu}}
  speech:
    data: {{type: synth, texts: [five, one six, two four], count: 3}}
    voices: {{accents: [en-us], count: 2}}
  mix: {{human: 2, pseudo: 1, synthetic: 1}}
  may_share: [texts]
"""


def written(folder, corpus, tiny_text):
    """A tiny run with rounds: 6 labelled clips, 10 that are not, 4 to measure it. The manifest of those that are not
    labelled names texts, which nothing may read."""
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    poisoned = [
        r | {"audio_path": str(corpus / r["audio_path"]), "text": "poison", "speaker": "poison"} for r in records
    ]
    (folder / "unlabelled.jsonl").write_text("".join(json.dumps(r) + "\n" for r in poisoned))
    text = tiny_text.format(folder=corpus, runs=folder / "runs", dropout=0.0)
    text = text.replace('train.jsonl"}]', 'train.jsonl", limit: 6}]').replace("  eval: {", "  test: {")
    text = text.replace("steps: 6, log_every: 1, eval_every: 6, save_every: 2", "steps: 10, log_every: 10").replace(
        "lr: 1e-3", "lr: 1e-2"
    )
    path = folder / "tiny.yaml"
    path.write_text(text + SECTION.format(unlabelled=folder / "unlabelled.jsonl"))
    return path


@pytest.fixture
def run_file(corpus, tiny_text, tmp_path):
    return written(tmp_path, corpus, tiny_text)


@pytest.fixture(scope="module")
def straight(corpus, tiny_text, tmp_path_factory):
    """The folder of such a run, that was done in one go, in `runs/run`."""
    folder = tmp_path_factory.mktemp("straight")
    assert main(["improve", str(written(folder, corpus, tiny_text))]) == 0
    return folder


def results_of(tmp_path):
    return json.loads((tmp_path / "runs" / "run" / "results.json").read_text())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_round_labels_speaks_mixes_and_trains(straight, here):
    folder, results = straight / "runs" / "run", results_of(straight)
    first, second = results["rounds"]
    assert first["kept"] and first["entered"].keys() == {"human"} and first["entered"]["human"]["records"] == 6
    spoken, refused = second["entered"]["synthetic"], second["left"]["synthetic"]
    assert spoken["records"] + sum(part["records"] for part in refused.values()) == 3
    pseudo = lines(folder / "round-1" / "pseudo.jsonl")
    rejects = lines(folder / "round-1" / "labels-1" / "rejects.jsonl")
    assert len(pseudo) == second["entered"]["pseudo"]["records"] > 0 and len(pseudo) + len(rejects) == 10
    assert "poison" not in json.dumps(pseudo + rejects)
    assert {(r["label_source"], r["round"]) for r in pseudo} == {("pseudo", 1)}
    assert all("round-0/run/export" in r["labelled_by"][0] and 0 <= r["confidence"] <= 1 for r in pseudo)
    config = (folder / "round-1" / "run.yaml").read_text()
    assert "weight: 2.0" in config and "synthetic.jsonl" in config and "improve: null" in config
    assert "(improve.rounds)" in (folder / "report.html").read_text()
    assert "chosen on dev itself" in (folder / "report.html").read_text()
    assert results["best"] in (0, 1) and results["eval"] == results["rounds"][results["best"]]["eval"]
    assert json.loads(here("transcribe", folder, pseudo[0]["audio_path"], "--format", "json"))["text"] is not None
    told = here("improve", straight / "tiny.yaml", "improve.labels.jobs=1", "train.device=auto")
    assert "All rounds are done" in told and "settings have changed" not in told


def test_another_set_decides_only_where_the_best_round_was_measured_on_it(straight, attempt):
    options = ["data.eval={mine: {type: synth, texts: [three six], count: 2}}", "improve.labels.labelled=null"]
    code, told = attempt("improve", straight / "tiny.yaml", *options)
    assert code == 2 and re.search(r"'data.eval.mine': round \d was measured on none of these records", told)


def test_a_round_is_kept_where_enough_resamples_are_better(straight, attempt):
    """One of four clips is better: drawn with replacement it is among four in 1 - 0.75**4 = 68 % of the resamples."""
    folder = straight / "runs" / "run"
    for number in (0, 1):
        path = folder / f"round-{number}" / "run" / "predictions" / "dev.jsonl"
        records = lines(path)
        for place, record in enumerate(records):
            record["output"]["text"] = record["reference"]["text"] if number and place == 0 else ""
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    for assurance, kept in ((0.6, True), (0.75, False)):
        (folder / "round-1" / "round.json").unlink()
        code, told = attempt("improve", straight / "tiny.yaml", f"improve.assurance={assurance}")
        assert code == 0 and "run is finished" in told and (" Kept." in told) == kept
        again = results_of(straight)["rounds"][1]
        assert again["kept"] == kept and 0.65 < again["change"]["wer"]["details"]["better"] < 0.72
        page = (folder / "report.html").read_text()
        assert f"at least {100 * assurance:g} % of the resamples are better" in page and "better in 6" in page


@pytest.mark.long
def test_a_stop_at_any_step_changes_nothing(straight, run_file, attempt, tmp_path, monkeypatch):
    """Each call is stopped before the next step that it would do, until all are done: every step is done once."""
    steps = Counter()

    def stopping(function):
        def call(*arguments, **options):
            if steps["allowed"] == 0:
                raise Stopped("Stopped by a signal.")
            answer = function(*arguments, **options)
            steps["allowed"] -= 1
            return answer

        return call

    import stentor.commands.improve.command as improve
    from stentor.commands.improve import material

    for module, name in ((improve, "train_run"), (material, "prepare_run"), (improve, "gather")):
        monkeypatch.setattr(module, name, stopping(getattr(module, name)))
    codes = []
    while not codes or codes[-1]:
        steps["allowed"] = len(codes)
        codes.append(attempt("improve", run_file)[0])
        assert len(codes) < 12 and codes[-1] in (0, 75)
    assert len(codes) > 5
    folder = tmp_path / "runs" / "run"
    for run in ("round-0", "round-1"):
        events = [e["event"] for e in lines(folder / run / "run" / "events.jsonl")]
        assert events.count("finished") == 1 and events.count("started") == 1
    stopped, whole = results_of(tmp_path)["rounds"], results_of(straight)["rounds"]
    assert [r["eval"] for r in stopped] == [r["eval"] for r in whole]
    assert [r["entered"] for r in stopped] == [r["entered"] for r in whole]


def test_texts_that_may_be_shared_are_spoken(run_file, here, corpus, tmp_path):
    """Where the test set's texts are all that there is to say, as with digits."""
    here(
        "improve", run_file, f"improve.speech.data={{type: jsonl, path: '{corpus}/dev.jsonl'}}", "improve.unlabelled=[]"
    )
    done = results_of(tmp_path)["rounds"][1]
    assert done["entered"]["synthetic"]["records"] > 0 and "held_out" not in done["left"]["synthetic"]


@pytest.mark.long
def test_ratios_are_chosen_on_the_eval_set_and_one_more_round_can_be_asked_for(run_file, here, corpus, tmp_path):
    options = [f"data.eval={{mine: {{type: jsonl, path: '{corpus}/dev.jsonl', limit: 2}}}}", "data.test.dev.skip=2"]
    options += [f"data.test.more={{type: jsonl, path: '{corpus}/dev.jsonl', skip: 3}}"]
    options += ["improve.start=best", "improve.then={train: {steps: 3}}", "improve.sweep_share=0.4"]
    options += ["improve.unlabelled=[]", "improve.sweep=[{human: 1, synthetic: 3}]", "improve.rounds=0"]
    here("improve", run_file, *options)
    assert len(results_of(tmp_path)["rounds"]) == 1
    told = " ".join(here("improve", run_file, *options, "--more", "1").split())
    assert re.search(
        r"Round 1, mine: WER .* against .*; dev: WER .*; more: WER .* The best is .*, dev: .*; more: ", told
    )
    results = results_of(tmp_path)
    tried = results["rounds"][1]["sweep"]
    assert (results["decided_on"], results["reported_on"], len(tried)) == ("mine", "dev", 2)
    assert results["rounds"][1]["mix"] in [t["mix"] for t in tried]
    sweep = json.loads((tmp_path / "runs" / "run" / "round-1" / "sweep-2" / "results.json").read_text())
    assert sweep["eval"].keys() == {"mine"} and sweep["steps"] == 1
    run = (tmp_path / "runs" / "run" / "round-1" / "run.yaml").read_text()
    assert "round-0/run/export" in run and "steps: 3" in run and "stages: null" in run
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert all(f">WER, {name}</th>" in page for name in ("mine", "dev", "more"))
    assert re.search(r"WER by round\. mine: .*dev: .*more: ", page)
    assert "WER by ratio" in page and "dev chose nothing" in page and "<audio" in page


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("improve.may_share=[]", 3, "`data.test.dev` shares 4 of 4 texts with `data.train`"),
        ("data.test.dev.path={unlabelled}", 3, "10 of 16 ids"),
        ("data.test.more={type: jsonl, path: '{unlabelled}'}", 3, "`data.test.more` shares 10 of 16 ids, 10 of 16 rec"),
        ("improve.labels.labelled={type: jsonl, path: '{corpus}/dev.jsonl'}", 3, "with `improve.labels.labelled`"),
        ("improve.speech.references={type: jsonl, path: '{corpus}/dev.jsonl'}", 3, "`improve.speech.references`"),
        ("data.eval={few: {type: text, texts: [one, two]}}", 3, "2 of 2 records of `data.eval.few` have a text"),
        (
            "data.eval={choose: {type: jsonl, path: '{corpus}/dev.jsonl'}}",
            3,
            "4 of 4 recordings with `data.eval.choose`",
        ),
        ("improve.unlabelled=[{type: jsonl, path: '{long}'}]", 3, "shares 1 of 4 recordings with `improve.unlabelled`"),
        ("improve.labels.labelled={type: text, texts: [one]}", 3, "1 of 1 records of `improve.labels.labelled` have"),
        ("improve.speech.data={type: text, texts: [one], limit: 1, skip: 1}", 3, "There is nothing to speak"),
        ("improve.labels.models=[none]", 2, "'improve.labels.models.0': There is no model none"),
        ("improve.speech.recognizer=none", 2, "'improve.speech.recognizer': There is no model none"),
        ("improve.labels.device=bogus", 2, "Unknown device bogus"),
        ("improve=null", 2, "has no section `improve:`"),
        ("improve.test=other", 2, "'improve.test': is not a set of `data.test` (dev)"),
        ("improve.sweep=[{human: 1}]", 2, "ratios are never chosen on a test set"),
        ("data.eval={mine: {type: held_out, share: 0.2}}", 2, "with pseudo-labels"),
        ("stages=[{data: {train: []}}]", 2, "stages.0.data.train"),
        ("improve.labels.round=3", 2, "improve.labels.round"),
        ("improve.labels.max_errors=3", 2, "did you mean"),
        ("improve.then={train: {stepz: 3}}", 2, "improve.then: unknown key 'train.stepz'"),
        ("improve.mix={pseudo: 0, synthetic: 0}", 2, "'improve.mix': uses no data of the rounds"),
        ("improve.labels.decodings=[{language_model: none.txt}]", 3, "decodings.0.language_model': none.txt does not"),
        ("improve.labels.decodings=[{language_model: '{empty}'}]", 3, "empty.txt holds no text"),
        ("improve.labels.decodings=[{language_model_weight: 1}]", 2, "needs `language_model`"),
    ],
)
def test_what_is_refused(run_file, corpus, attempt, override, code, message):
    (empty := run_file.parent / "empty.txt").touch()
    talk = {"id": "talk", "audio_path": f"{corpus}/../{corpus.name}/dev0.wav", "duration": 40}  # is cut by `stages`
    (long := run_file.parent / "long.jsonl").write_text(json.dumps(talk) + "\n")
    places = {"{long}": str(long)}
    places |= {"{unlabelled}": f"{run_file.parent}/unlabelled.jsonl", "{corpus}": str(corpus), "{empty}": str(empty)}
    for name, place in places.items():
        override = override.replace(name, place)
    answered, text = attempt("improve", run_file, override)
    assert answered == code and message in text and "Round 0" not in text


def test_a_round_that_nothing_enters_is_not_trained(run_file, attempt, tmp_path):
    options = ["improve.speech=null", "improve.labels.max_error=0.0001", "train.steps=2"]
    for _ in range(2):
        code, text = attempt("improve", run_file, *options)
        assert code == 3 and "Nothing enters round 1" in text
    assert len(results_of(tmp_path)["rounds"]) == 1 and not (tmp_path / "runs" / "run" / "round-1" / "run").exists()


def test_a_run_file_without_a_test_set_is_refused(run_file, attempt):
    run_file.write_text(run_file.read_text().replace("  test: {", "  eval: {"))
    code, text = attempt("improve", run_file)
    assert code == 2 and "needs a set in `data.test`" in text


@pytest.mark.slow
def test_a_signal_in_training_ends_it_with_75_and_the_same_command_goes_on(run_file, start, cli, tmp_path):
    options = ["train.steps=3000", "train.save_every=400", "train.log_every=1"]
    process = start("improve", run_file, *options)
    wait_for(tmp_path / "runs" / "run" / "round-0" / "run" / "metrics.jsonl", '"step": 3,', process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75 and "Run the same command to resume" in err and "Traceback" not in err
    done = cli("improve", run_file, "train.steps=8", "train.log_every=1", "improve.rounds=0")
    assert "Resuming from step" in done.stdout
    assert len(results_of(tmp_path)["rounds"]) == 1
