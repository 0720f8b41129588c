"""Files, bases, overrides and stages, against the real schema."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.config.document import Mistakes, parse, scalar
from stentor.config.load import describe, load, parse_source, resolved, stage_configs
from stentor.config.yaml_writer import dump
from stentor.errors import ConfigError, DataError
from stentor.section.schema_walk import split_key

RUN = """\
task: transcribe
model: {type: speech_llm, encoder: {from: e}, llm: {from: l}}
data:
  train:
    - {type: jsonl, path: a.jsonl, language: no}
    - {type: jsonl, path: b.jsonl}
optim:
  lr: 1e-4
  betas: [0.9, 0.95]
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text=RUN, name="run.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path.relative_to(tmp_path)

    return write


def test_scalars_follow_yaml_1_2(run):
    config = load(run()).config
    assert config.optim.lr == 1e-4
    assert config.data.train[0].language == "no"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-3", -3),
        ("+3", 3),
        ("0x1F", 31),
        ("0o17", 15),
        ("010", 10),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("1.2.3", "1.2.3"),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
    ],
)
def test_plain_scalars(text, value):
    parsed = scalar(text)
    assert parsed == value and type(parsed) is type(value)


def test_quoted_scalars_are_text():
    node = parse("a: '1'\nb: \"true\"\nc: |\n  1\n", "x", 0, [])
    assert node.plain() == {"a": "1", "b": "true", "c": "1\n"}


def test_json_files_load_with_lines(run):
    data = {
        "task": "transcribe",
        "name": "\U0001f600/é",
        "model": {"type": "speech_llm", "encoder": {"from": "e"}, "llm": {"from": "l"}},
        "data": {"train": [{"type": "jsonl", "path": "a.jsonl"}]},
    }
    assert load(run(json.dumps(data, indent="\t"), "run.json")).config.name == "\U0001f600/é"
    data["optim"] = {"lr": "x"}
    with pytest.raises(Mistakes) as caught:
        load(run(json.dumps(data, indent="\t"), "run.json"))
    assert str(caught.value).startswith("run.json:22: 'optim.lr'")


def test_aliases_are_values_and_cannot_explode(run):
    text = RUN + "name: &n x\noutput: *n\n"
    assert load(run(text)).config.output == "x"
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(Mistakes, match="more than 100000 values"):
        load(run(bomb))
    with pytest.raises(Mistakes, match="must be in quotes"):
        load(run("a: &a [*a]\n"))


def test_missing_file_names_the_nearest(run):
    run()
    with pytest.raises(ConfigError, match=r"runn.yaml does not exist \(did you mean run.yaml\?\)"):
        load(run().with_name("runn.yaml"))


def test_loaded_keeps_the_text_as_given(run):
    text = "# why this run exists\n" + RUN
    loaded = load(run(text), ["optim.lr=3"])
    assert loaded.text == text
    assert loaded.overrides == ("optim.lr=3",)
    assert describe(loaded) == "task transcribe, model speech_llm, trained on jsonl, jsonl."


# base


def test_base_merges_deeply_and_replaces_lists(run):
    run(RUN, "recipes/parent.yaml")
    child = run(
        "base: ../recipes/parent.yaml\noptim: {lr: 2}\ndata: {train: [{type: jsonl, path: c.jsonl}]}\n", "mine/c.yaml"
    )
    config = load(child).config
    assert (config.optim.lr, config.optim.betas) == (2, (0.9, 0.95))
    assert [str(s.path) for s in config.data.train] == ["c.jsonl"]


def test_base_chain(run):
    run(RUN, "a.yaml")
    run("base: a.yaml\nname: b\noptim: {eps: 1e-6}\n", "b.yaml")
    config = load(run("base: b.yaml\nname: c\n", "c.yaml")).config
    assert (config.name, config.optim.eps, config.optim.lr) == ("c", 1e-6, 1e-4)


def test_another_type_starts_its_section_anew(run):
    run(RUN + "  weight_decay: 0.5\nlosses: {text: {type: cross_entropy, label_smoothing: 0.1}}\n", "a.yaml")
    # A choice: `label_smoothing` means nothing to ctc.
    config = load(run("base: a.yaml\nlosses: {text: {type: ctc, weight: 2}}\n", "b.yaml")).config
    assert config.losses["text"].model_dump(include={"type", "weight"}) == {"type": "ctc", "weight": 2}
    same = load(run("base: a.yaml\nlosses: {text: {type: cross_entropy, weight: 2}}\n", "c.yaml")).config
    assert (same.losses["text"].label_smoothing, same.losses["text"].weight) == (0.1, 2)
    untyped = load(run("base: a.yaml\nlosses: {text: {weight: 3}}\n", "d.yaml")).config
    assert (untyped.losses["text"].label_smoothing, untyped.losses["text"].weight) == (0.1, 3)
    # Not a choice: all optimizers share their keys.
    assert load(run("base: a.yaml\noptim: sgd\n", "e.yaml")).config.optim.weight_decay == 0.5


def test_null_in_a_child_switches_off(run):
    run(RUN + "train: {clip: 3}\n", "a.yaml")
    assert load(run("base: a.yaml\ntrain: {clip: null}\n", "b.yaml")).config.train.clip is None


# overrides


def test_overrides(run):
    config = load(
        run(),
        [
            "optim.lr=3e-5",
            "data.train.0.path=x=y.jsonl",
            "data.eval.dev.type=jsonl",
            "data.eval.dev.path=d.jsonl",
            "optim=sgd",
            "model.freeze=[encoder.*, '*.bias']",
            "train={epochs: 3, clip: null}",
            "name=1e-4 ?",
            "data.train.2={type: jsonl, path: c.jsonl}",
            "callbacks.0=memory",
        ],
    ).config
    assert (config.optim.type, config.optim.lr, config.optim.betas) == ("sgd", 3e-5, (0.9, 0.95))
    assert [str(s.path) for s in config.data.train] == ["x=y.jsonl", "b.jsonl", "c.jsonl"]
    assert str(config.data.eval["dev"].path) == "d.jsonl"
    assert config.model.freeze == ["encoder.*", "*.bias"]
    assert (config.train.epochs, config.train.clip, config.name) == (3, None, "1e-4 ?")
    assert config.callbacks[0].type == "memory"


def test_an_override_of_a_type_counts_first(run):
    text = RUN + "losses: {text: {type: cross_entropy, label_smoothing: 0.1}}\n"
    for order in (["losses.text.weight=2", "losses.text.type=ctc"], ["losses.text.type=ctc", "losses.text.weight=2"]):
        loss = load(run(text), order).config.losses["text"]
        assert (loss.type, loss.weight) == ("ctc", 2)


def test_a_glob_is_text_in_an_override(run):
    assert load(run(), ["output=*.bias"]).config.output == "*.bias"


def test_without_a_file():
    source = "data.train=[{type: jsonl, path: a.jsonl}]"
    model = "model={type: speech_llm, encoder: {from: e}, llm: {from: l}}"
    loaded = load(None, ["task=transcribe", model, source])
    assert loaded.text == "" and loaded.config.task.type == "transcribe"
    with pytest.raises(Mistakes, match=r"^config: 'model' is missing"):
        load(None, ["task=transcribe", source])


def test_dotted_keys():
    assert split_key('a."b.c".0.d') == ["a", "b.c", 0, "d"]
    for wrong in ("", ".", "a..b", ".a", "a."):
        with pytest.raises(ValueError, match="not a dotted key"):
            split_key(wrong)


# stages


def test_stages_apply_to_the_run_one_by_one(run):
    text = RUN + "stages:\n  - optim.lr: 1e-3\n    train: {epochs: 2}\n  - data.train.1.limit: 5\n    optim: sgd\n"
    first, second = stage_configs(load(run(text), ["optim.eps=1e-5"]))
    assert (first.optim.lr, first.train.epochs, first.optim.type) == (1e-3, 2, "adamw")
    assert (second.optim.lr, second.train.epochs, second.optim.type) == (1e-4, None, "sgd")
    assert second.data.train[1].limit == 5 and first.data.train[1].limit is None
    assert first.optim.eps == second.optim.eps == 1e-5
    assert first.stages is None


def test_without_stages_the_run_is_its_own(run):
    loaded = load(run())
    assert stage_configs(loaded) == [loaded.config]


def test_a_mistake_of_the_run_is_told_once(run):
    with pytest.raises(Mistakes) as caught:
        load(run(RUN + "name: 3\nstages:\n  - optim.lr: 1\n  - optim.lr: 2\n"))
    assert len(caught.value.mistakes) == 1
    assert caught.value.mistakes[0].place.line == 10 and caught.value.mistakes[0].key == "name"


# resolved


def test_resolved_loads_to_the_same_config(run):
    text = RUN + (
        "name: 'no'\ntrain: {ema: 0.999}\nlosses: {text: {type: cross_entropy}, ctc: {type: ctc, weight: 0.3}}\n"
        "callbacks: [memory, {type: early_stop}]\n"
        "stages:\n  - optim.lr: 1e-8\n    train: {epochs: 2}\n"
    )
    loaded = load(run(text))
    again = load(run(resolved(loaded.config), "resolved.yaml"))
    assert again.config == loaded.config
    assert again.stages == loaded.stages
    assert type(again.config.model) is type(loaded.config.model)
    assert resolved(again.config) == resolved(loaded.config)


def test_resolved_reads_the_same_by_a_yaml_1_1_reader(run):
    yaml = pytest.importorskip("yaml")
    loaded = load(run(RUN + "name: 'no'\noutput: '1e-4'\n"), ["optim.eps=1e-8"])
    assert yaml.safe_load(resolved(loaded.config)) == loaded.config.model_dump(
        mode="json", by_alias=True, serialize_as_any=True
    )


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="ascii")), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None, database=None, derandomize=True)
@given(st.dictionaries(st.text(min_size=1, max_size=8), _values, min_size=1, max_size=4))
def test_dump_is_read_back_as_it_was(value):
    mistakes = []
    parsed = parse(dump(value), "x", 0, mistakes).plain()
    assert parsed == value and not mistakes
    assert json.dumps(parsed) == json.dumps(value)  # also the types: 1 and 1.0 and true are equal in Python


@pytest.mark.parametrize(
    "token", ["hf_" + "aB3" * 12, "ghp_" + "x1" * 18, "sk-" + "q" * 40, "key " + "AKIA" + "A1" * 8]
)
def test_tokens_are_refused_and_not_repeated(run, token):
    with pytest.raises(Mistakes, match="looks like a password or an access token") as caught:
        load(run(), [f"data.train.0.where={{note: {token!r}}}"])
    assert token not in caught.value.mistakes[0].text


def test_long_names_are_no_tokens(run):
    assert load(run(), ["name=task-transcribe-hf_whisper-large-v3-finetuned-on-everything"]).config.name


# sources of the command line


def test_source_from_a_path(run, tmp_path):
    assert parse_source("dev.jsonl").type == "jsonl"
    assert parse_source("cuts.jsonl.gz").type == "manifest"
    (tmp_path / "shar").mkdir()
    with pytest.raises(DataError, match="shar is no folder of a known layout"):
        parse_source("shar")
    (tmp_path / "shar" / "a.wav").touch()
    assert parse_source("shar").type == "audio_folder"
    (tmp_path / "shar" / "cuts.000000.jsonl.gz").touch()
    assert parse_source("shar").type == "manifest"
    limited = parse_source("dev.jsonl,limit=3,where={speaker: [anna, ben]}")
    assert (str(limited.path), limited.limit, limited.where) == ("dev.jsonl", 3, {"speaker": ["anna", "ben"]})


def test_source_from_keys():
    source = parse_source("type=corpus,name=librispeech,from=./data,split=dev-clean,options.mic=sdm")
    assert (source.type, source.name, str(source.from_), source.split) == ("corpus", "librispeech", "data", "dev-clean")
    assert source.options == {"mic": "sdm"}


def test_an_existing_path_may_hold_a_comma_or_an_equals_sign(run, tmp_path):
    (tmp_path / "a,b=c.jsonl").touch()
    assert str(parse_source("a,b=c.jsonl").path) == "a,b=c.jsonl"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dev.jsonl,limt=3", "data `dev.jsonl,limt=3`: unknown key 'limt' (did you mean 'limit'?)"),
        (
            "dev.jsonl,limit=x",
            "data `dev.jsonl,limit=x`: 'limit' must be a whole number of at least 1 or null, not 'x'",
        ),
        ("type=jsonl", "data `type=jsonl`: 'path' is missing: it must be a path"),
    ],
)
def test_wrong_source(spec, message):
    with pytest.raises(Mistakes) as caught:
        parse_source(spec)
    assert str(caught.value) == message


# keys that exclude each other, entries that are taken out


def test_an_override_replaces_what_it_excludes(run):
    epochs = run(RUN + "train: {epochs: 20}\nschedule: {warmup_ratio: 0.1}\n")
    config = load(epochs, ["train.steps=60", "schedule={warmup_steps: 5}"]).config
    assert (config.train.steps, config.train.epochs) == (60, None)
    assert (config.schedule.warmup_steps, config.schedule.warmup_ratio) == (5, None)
    child = run("base: run.yaml\ntrain: {steps: 7}\nstages: [{train.epochs: 2}, {train: {epochs: 3}}]\n", "child.yaml")
    loaded = load(child)
    assert loaded.config.train.steps == 7 and [s.train.steps for s in loaded.stages] == [None, None]
    assert [s.train.epochs for s in loaded.stages] == [2, 3]
    assert load(child, ["model.encoder.config={model_type: whisper}"]).config.model.encoder.source is None
    assert load(epochs, ["train.steps=null"]).config.train.epochs == 20


@pytest.mark.parametrize(
    "overrides",
    [["train.steps=6", "train.epochs=2"], ["train.epochs=2", "train={steps: 6}"], ["train={steps: 6, epochs: 2}"]],
)
def test_two_overrides_that_exclude_each_other_are_refused(run, overrides):
    with pytest.raises(Mistakes, match="give `steps` or `epochs`, not both"):
        load(run(), overrides)


@pytest.mark.parametrize(
    ("override", "hint"),
    {
        "data.batch_size=8": "it is called 'max_items' here",
        "train.per_device_train_batch_size=8": "it is called 'max_items' here and belongs under 'data'",
        "num_train_epochs=3": "it is called 'epochs' here and belongs under 'train'",
        "train.warmup_ratio=0.1": "'warmup_ratio' belongs under 'schedule'",
        "train.fp16=true": "it is called 'train.precision: fp16' here",
        "train.optimizer=adamw": "it is called 'optim' here",
        "train.load_best_model_at_end=true": "it is called 'train.use' here",
        "model.model_name_or_path=x": "it is called 'model.from' here",
        "model.lora_rank=8": "it is called 'rank' here and belongs under 'model.lora'",
    }.items(),
)
def test_names_of_other_toolkits_lead_to_ours(run, override, hint):
    with pytest.raises(Mistakes) as refused:
        load(run(RUN), [override])
    assert hint in str(refused.value), refused.value


def test_null_takes_an_entry_out_of_a_mapping(run):
    sets = "  eval:\n    dev: {type: jsonl, path: d.jsonl}\n    far: {type: jsonl, path: f.jsonl}\n"
    path = run(RUN.replace("optim:", sets + "optim:") + "losses: {text: {type: cross_entropy}, ctc: {type: ctc}}\n")
    config = load(path, ["data.eval.far=null", "losses.ctc=null"]).config
    assert list(config.data.eval) == ["dev"] and list(config.losses) == ["text"]
    assert load(path, ["losses=null"]).config.losses is None
    assert list(load(run("base: run.yaml\ndata: {eval: {dev: null}}\n", "child.yaml")).config.data.eval) == ["far"]
    with pytest.raises(Mistakes, match="nowhere"):
        load(path, ["data.eval.nowhere=null"])
    empty = r"\{\} changes nothing, because mappings merge: \{dev: null, far: null\} removes the entries"
    for call in (
        lambda: load(path, ["data.eval={}"]),
        lambda: load(path, ["data={eval: {}}"]),
        lambda: load(run("base: run.yaml\ndata: {eval: {}}\n", "child.yaml")),
    ):
        with pytest.raises(Mistakes, match=empty):
            call()
    assert not load(path, ["data.eval={dev: null, far: null}", "data.test={}"]).config.data.eval
    tied = load(path, ["model.encoder.config={model_type: whisper, bos_token_id: null}"])  # null means something
    assert tied.config.model.encoder.config["bos_token_id"] is None


@pytest.mark.parametrize("depth", [60, 3000, 100_000])
@pytest.mark.parametrize("text", ["data: {}\n", '{{"data": {}}}', "override"])
def test_a_config_has_few_levels(run, depth, text):
    nested = "[" * depth + "]" * depth
    name = "run.json" if text.startswith("{") else "run.yaml"
    with pytest.raises(Mistakes, match="more than 50 levels; this is not a config") as caught:
        if text == "override":
            load(run(), [f"data.train={nested}"])
        else:
            load(run(text.format(nested), name))
    [mistake] = caught.value.mistakes
    assert str(mistake).startswith(("run.", "override `data.train="))
