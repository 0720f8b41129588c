"""The run files that the choices make load; the plan of one is read; what cannot be chosen is told in a sentence."""

import json

import numpy as np
import pytest

from stentor.commands.plan.suggest import suggest
from stentor.config.load import load_text, stage_configs
from stentor.config.yaml_writer import dump
from stentor.errors import ConfigError, StentorError
from stentor.models.base import Family
from stentor.studio.runs import plans, settings
from stentor.studio.runs.path_policy import checked
from stentor.studio.runs.settings import FULL, LORA, OWN, RUN
from stentor.tasks.base import Task

CHOICES = [(t, m.name, how) for m in settings.known().values() for t in m.tasks for how in m.methods]
RATE = 16000


@pytest.fixture
def dataset(projects):
    """Ten recordings of two voices with word times; both voices are on both sides."""
    dataset = projects.create("mine", "en")
    noise = np.random.default_rng(0)
    for number in range(10):
        words = ["number", ["one", "two", "three", "four", "five"][number // 2]]
        times = [{"word": w, "start": 0.1 + 0.3 * i, "end": 0.4 + 0.3 * i} for i, w in enumerate(words)]
        sound = noise.normal(0, 0.1, RATE).astype("float32")
        dataset.add(sound, RATE, " ".join(words), speaker="ab"[number % 2], words=times)
    dataset.parts()
    for number, record in enumerate(dataset.records()):
        dataset.move(record["id"], "held_out" if number < 2 else "train")
    return dataset


def test_every_choice_makes_a_run_file_that_loads_and_names_nothing_else(projects, dataset):
    projects.guarded = True
    for task, name, how in CHOICES:
        model = settings.known()[name]
        loaded = checked(dump(settings.start(task, model, how, dataset)), projects)
        last = stage_configs(loaded)[-1]
        assert last.task.type == task and last.model.type == model.family, (name, how)
        assert (getattr(last.model, "lora", None) is not None) == (how == LORA), (task, name)
        source = last.data.train[0]
        source = source if source.type == "jsonl" else source.source
        assert source.path == dataset.folder / "train.jsonl" and list(last.data.eval) == ["held_out"], (task, name, how)
        assert any(c.type == "samples" for c in last.callbacks), (task, name, how)


def test_the_lists_are_the_registries():
    assert {name for _, name in settings.tasks()} == set(Task.choices())
    for task in Task.choices():
        assert set(settings.families(task)) == {n for n, k in Family.choices().items() if task in k.tasks}
    for model in settings.known().values():
        assert (LORA in model.methods) <= ("lora" in Family.choices()[model.family].model_fields)


def test_each_task_has_a_model_that_needs_no_network(projects, monkeypatch):
    monkeypatch.setattr(settings, "reachable", lambda: False)
    for _, task in settings.tasks():
        if task == "who_said_what":  # only pretrained models have it: one's own folder needs no network
            assert settings.first(task) == settings.OWN
        else:
            assert settings.known()[settings.first(task)].download is None
    away = dict(map(reversed, settings.models("transcribe", projects)))
    assert settings.say("model_away") in away["whisper_tiny"]
    assert settings.say("model_away") not in away["small_speech_llm"]


def test_learning_rate_and_epochs_are_those_of_the_plan(dataset):
    hours = settings.facts(dataset).hours
    for name, how in (("whisper_small", FULL), ("voxtral_mini", LORA), ("small_speech_llm", FULL)):
        model = settings.known()[name]
        tree = settings.start("transcribe", model, how, dataset)
        kind = "scratch" if name.startswith("small") else how
        good = suggest(model.recipe or model.family, kind, hours, model.parameters)
        assert (tree["optim"]["lr"], tree["train"]["epochs"]) == (good.lr, good.epochs)


def test_the_division_is_not_drawn_anew(dataset):
    dataset.split(0.5)
    before = {p.name: p.read_bytes() for p in dataset.folder.glob("*.jsonl")}
    settings.start("transcribe", settings.known()["whisper_tiny"], FULL, dataset)
    assert {p.name: p.read_bytes() for p in dataset.folder.glob("*.jsonl")} == before


def test_tasks_go_by_what_the_recordings_have(projects):
    alone = projects.create("alone")
    for text in ("one", "two", "three"):
        alone.add(np.full(RATE, 0.1, "float32"), RATE, text, speaker="a")
    offered = {name for _, name in settings.tasks(settings.facts(alone))}
    assert offered == set(Task.choices()) - {"words", "diarize"}
    with pytest.raises(ConfigError, match="two speakers"):
        settings.start("diarize", settings.known()["small_diarize"], FULL, alone)
    with pytest.raises(ConfigError, match="no word times"):
        settings.start("words", settings.known()["small_words"], FULL, alone)


@pytest.mark.parametrize(
    ("choice", "family", "source", "message"),
    [
        ("nothing", None, None, "no model nothing"),
        (OWN, None, "openai/whisper-tiny", "kind"),
        (OWN, "seq2seq", " ", "name on the Hub"),
        ("small_speak", None, None, "no model"),
        (RUN + "missing", None, None, "no run missing"),
        (RUN + "../x", None, None, "no run"),
    ],
)
def test_choices_that_are_not_there_are_told(projects, choice, family, source, message):
    with pytest.raises(ConfigError, match=message):
        settings.chosen(choice, "transcribe", projects, family, source)
    with pytest.raises(ConfigError, match="cannot be trained in that way"):
        settings.start("transcribe", settings.known()["small_speech_llm"], LORA, projects.create("empty"))


@pytest.mark.parametrize("family", [name for _, name in settings.pretrained_families("transcribe")])
def test_another_model_takes_the_place_of_a_known_one(projects, dataset, family):
    model = settings.chosen(OWN, "transcribe", projects, family, "someone/model")
    for how in model.methods:
        config = load_text(dump(settings.start("transcribe", model, how, dataset))).config
        assert (config.model.type, config.model.source) == (family, "someone/model")
        assert not any("wav2vec2" in glob for glob in config.model.freeze)


def test_a_finished_run_can_be_gone_on_from(projects, dataset):
    first = settings.start("transcribe", settings.known()["small_speech_llm"], FULL, dataset)
    folder = projects.runs / "before"
    (folder / "export").mkdir(parents=True)
    (folder / "run.yaml").write_text(dump(first))
    (folder / "studio.json").write_text("{}")
    assert settings.runs("transcribe", projects) == []  # it is not finished
    (folder / "export" / "config.json").write_text("{}")
    (folder / "results.json").write_text(json.dumps({"parameters": {"total": 2_000_000}}))
    assert settings.runs("transcribe", projects) == [RUN + "before"] == settings.runs("words", projects)
    assert settings.runs("speak", projects) == []
    with pytest.raises(ConfigError, match="another thing"):
        settings.chosen(RUN + "before", "speak", projects)
    for task in ("transcribe", "words"):
        model = settings.chosen(RUN + "before", task, projects)
        config = load_text(dump(settings.start(task, model, FULL, dataset))).config
        assert config.model.init == str(folder / "export") and config.model.tokenizer.size == 300
        assert (config.model.aligner is not None) == (task == "words")
        assert config.optim.lr < 0.01 and config.data.augment.spec_augment is not None


def test_names_of_runs_are_valid_and_free(projects):
    name = settings.run_name(projects, "my-voice", OWN, "openai/whisper-tiny.en")
    assert name == "my-voice-whisper-tiny-en"
    (projects.runs / name.upper()).mkdir()
    assert settings.run_name(projects, "my-voice", OWN, "openai/whisper-tiny.en") == name + "-2"


def test_the_same_on_a_command_line_is_of_the_verb_that_the_run_file_is_for(projects):
    file = f"'{projects.runs}/a b/run.yaml'"
    assert settings.command(projects, "a b", "name: mine\n") == f"stentor train {file}"
    assert settings.command(projects, "a b", "improve: {rounds: 1}\n") == f"stentor improve {file}"
    assert settings.command(projects, None, "improve: {").startswith("stentor train ")  # half typed


PLAN = {
    "said": ["Listing the training data (jsonl) ...", "held_out shares with the training data: 1 of 2 speakers."],
    "parameters": [{"total": 3e9, "trained": 0}, {"total": 1e9, "trained": 2e6}],
    "data": {
        "records": 1200,
        "hours": 2.5,
        "steps": 300,
        "epochs": 3.0,
        "held_out": {"dev": {"records": 10, "hours": 0.01}},
        "dropped": {"too_long": {"count": 5, "named": ["a", "b", "c"]}},
    },
    "suggestion": {"notes": ["optim.lr 1 is 100000 times above the suggestion."]},
    "memory": {
        "device": "cuda",
        "free": 8 * 2**30,
        "not_tried": "it would not fit",
        "methods": [{"chosen": False, "total": 40 * 2**30}, {"chosen": True, "total": 12 * 2**30}],
    },
    "time": {"seconds": None},
}


def test_a_plan_in_words():
    rows = [value for _, value in plans.table(PLAN)]
    assert rows[0] == "1,200 recordings, 2.5 hours" and "36 seconds" in rows[1]
    assert "4 B, 2 M of them trained" in rows and "300, which is 3 times through the recordings" in rows
    assert any("12.00 GiB; 8.00 GiB are free on the GPU" in row for row in rows)
    warnings = plans.warnings(PLAN)
    assert "choose a smaller model" in warnings[0] and "5 recordings are left out (too_long): a, b, c ..." in warnings
    told = "\n".join(warnings)
    assert "100000 times above" in told and "1 of 2 speakers" in told and "Listing" not in told


def test_a_real_plan_is_read(dataset):
    from stentor.commands.plan.plan import plan

    text = dump(settings.start("language", settings.known()["small_language"], FULL, dataset))
    planned = json.loads(json.dumps(plan(load_text(text).config)))
    table = dict(plans.table(planned))
    assert table[settings.say("plan_data")].startswith("8 recordings")
    assert "30 times" in table[settings.say("plan_steps")]
    assert not [line for line in plans.warnings(planned) if "speakers" not in line and "texts" not in line]


def test_plans_that_cannot_be_made_say_why(projects, dataset):
    tree = settings.start("language", settings.known()["small_language"], FULL, dataset)
    with pytest.raises(StentorError, match="longer than"):
        plans.plan(projects, dump(tree), longest=0.01)
    with pytest.raises(ConfigError, match=r"run\.yaml.*task"):
        plans.plan(projects, "model: whisper\n")
    assert not list(projects.tmp.iterdir())


@pytest.mark.slow
def test_a_plan_is_worked_out_by_a_process_of_its_own(projects, dataset):
    tree = settings.start("transcribe", settings.known()["small_speech_llm"], FULL, dataset)
    (planned,) = plans.plan(projects, dump(tree))
    assert planned["time"]["seconds"] > 0 and dict(plans.table(planned))[settings.say("plan_memory")]
    tree["data"]["train"][0]["path"] = str(projects.folder / "nothing.jsonl")
    with pytest.raises(StentorError, match=r"nothing\.jsonl"):
        plans.plan(projects, dump(tree))
    assert not list(projects.tmp.iterdir())
