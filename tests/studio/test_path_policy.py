"""Where a password is set, a run file stays inside the person's projects and the folders of --models."""

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from stentor.config.document import Mistakes
from stentor.config.schema import Config
from stentor.config.yaml_writer import dump
from stentor.errors import ConfigError
from stentor.section import alternatives
from stentor.section.schema_walk import entries
from stentor.sources.base import Source
from stentor.studio.projects import Projects
from stentor.studio.runs.path_policy import FREE, OWN, REFUSED, _owner, _PathPolicy, checked


def keys(table: dict[str, str]) -> set[str]:
    """CLASS.KEY of classes and their keys."""
    return {f"{owner}.{key}" for owners, names in table.items() for owner in owners.split() for key in names.split()}


NOT_PATHS = keys(
    {
        "CTCFamily OmniVoice Seq2Seq TransducerFamily TransformersFamily": "freeze revision",
        "Codec Embedder PretrainedSection SSL Sherpa Utmos WavLMEcapa XVector": "revision",
        "SpeechLLM Transformer": "freeze",
        "AudioLLMLora CTCLora OmniVoiceLora Seq2SeqLora SpeechLLMLora TTSLora TransducerLora": "targets",
        "Columns": "audio duration ends id language speaker speakers starts text translation",
        "Hub": "config data_files name preset revision split subset",
        "Corpus": "name split",
        "LanguageAdapter Recognizer Source": "language",
        "WandB": "entity group project tags",
        "Trackio": "project space_id",
        "Voices": "accents variants",
        "Calibrate Interpolate": "set",
        "AudioFolder": "text_suffixes",
        "Config": "name",
        "Data": "by",
        "EarlyStop Schedule": "metric",
        "Train": "best_metric",
        "PromptSection": "audio_start audio_end",
        "Join": "same",
        "Jsonl": "columns",
        "OmniVoiceTokenizer": "phonemes",
        "ParameterGroup": "params",
        "Speak": "instruct_from",
        "Synth": "voices",
    }
)
"""Texts that are names, not paths. They are held to the same rule: nothing of them leads out."""
PATHS = keys(
    {
        "CTCFamily Codec Embedder OmniVoice PretrainedSection Recognizer SSL Seq2Seq TransducerFamily": "from",
        "Sherpa Utmos WavLMEcapa XVector": "from",
        "TransformersFamily": "from tokenizer",
        "Config": "output",
        "Family": "init",
        "Features": "store",
        "Transcribe": "spelling",
    }
)
"""Texts that may be a path (or a name on the Hub)."""
OUT = [
    "/etc/passwd",
    "../other/model",
    "runs/../../other",
    "~/models",
    "~root/x",
    "file:///etc/passwd",
    "file:/etc/x",
    "https://example.org/model",
    "s3://bucket/x",
    "hf://datasets/x/y",
    "$HOME/model",
    "${HOME}/model",
    "..",
    "a/..",
    "models\\..\\x",
    "inside/link",
    "inside/linked/model",
    "a\0b",
    "/proc/self/environ",
]


@pytest.fixture
def projects(tmp_path):
    """A guarded person's projects beside another person's folder, with links that lead there."""
    other = tmp_path / "other"
    (other / "model").mkdir(parents=True)
    (other / "secret.jsonl").write_text('{"audio_path": "a.wav", "text": "x"}\n')
    shared = tmp_path / "shared"
    (shared / "whisper").mkdir(parents=True)
    projects = Projects(tmp_path / "studio", True, (shared,))
    (projects.folder / "inside" / "model").mkdir(parents=True)
    (projects.folder / "inside" / "link").symlink_to(other)
    (projects.folder / "inside" / "linked").symlink_to(other)
    (projects.folder / "runs" / "clean" / "export").mkdir(parents=True)
    return projects


def run(**changes: Any) -> dict[str, Any]:
    tree = {
        "task": {"type": "transcribe"},
        "model": {"type": "whisper", "from": "openai/whisper-tiny"},
        "data": {"train": [{"type": "synth", "texts": "digits", "count": 5}]},
    }
    for key, value in changes.items():
        at: Any = tree
        *steps, last = key.split("__")
        for step in steps:
            at = at[int(step)] if step.isdigit() else at.setdefault(step, {})
        at[last] = value
    return tree


def refusals(tree: dict[str, Any], projects: Projects) -> list[tuple[str, int]]:
    """(key, line) of what is refused."""
    try:
        checked(dump(tree), projects)
    except Mistakes as error:
        return [(m.key, m.place.line) for m in error.mistakes]
    return []


@pytest.mark.parametrize("value", OUT)
def test_what_leads_out_is_refused_with_its_key(projects, value):
    for key in ("model__from", "model__init", "task__spelling", "model__revision"):
        ((refused, line),) = refusals(run(**{key: value}), projects)
        assert refused == key.replace("__", ".") and line > 0
    source = {"type": "jsonl", "path": value}
    assert refusals(run(data__train=[source]), projects)[0][0] == "data.train.0.path"
    assert refusals(run(data__eval={"dev": source}), projects)[0][0] == "data.eval.dev.path"
    for kind, key in (("synth", "texts"), ("text", "path")):
        assert refusals(run(data__train=[{"type": kind, key: value}]), projects)[0][0] == f"data.train.0.{key}"
    talk = {"type": "conversation", "source": source, "cache": value}
    refused = {key for key, _ in refusals(run(data__replay={"sources": [talk]}), projects)}
    also = set() if value.partition("://")[0] in ("https", "s3", "hf") else {"data.replay.sources.0.source.path"}
    assert refused == {"data.replay.sources.0.cache", *also}  # nobody may give a cache an address
    strings = {"type": "join", "source": [{"type": "synth"}, source]}
    assert refusals(run(data__train=[strings]), projects)[0][0] == "data.train.0.source.1.path"
    assert refusals(run(stages=[{"model": {"init": value}}]), projects)[0][0] == "model.init"
    assert refusals(run(stages=[{"model.init": value}]), projects)[0][0] == "model.init"


def test_without_a_password_paths_are_free(projects):
    projects.guarded = False
    for value in OUT:
        checked(dump(run(model__from=value)), projects)


def test_what_stays_inside_is_taken(projects, tmp_path):
    clean = "runs/clean/export"
    shared = str(tmp_path / "shared" / "whisper")
    for value in ("openai/whisper-tiny", "gpt2", clean, str(projects.folder / clean), shared, "inside/model"):
        assert refusals(run(model__from=value), projects) == []
    # A folder that holds a link is followed by whoever reads it.
    ((key, _),) = refusals(run(model__from="inside"), projects)
    assert key == "model.from"


def test_manifests_may_not_name_the_audio_of_others(projects, tmp_path):
    for audio in ("../../other/a.wav", "/etc/passwd", str(tmp_path / "other" / "a.wav")):
        (projects.folder / "list.jsonl").write_text(json.dumps({"audio_path": audio, "text": "x"}) + "\n")
        source = {"type": "jsonl", "path": "list.jsonl"}
        assert refusals(run(data__train=[source]), projects)[0][0] == "data.train.0.path"


@pytest.mark.parametrize("kind", ["manifest", "shards", "rttm", "speech_list"])
def test_sources_whose_files_can_name_anything_are_the_owners(projects, tmp_path, kind):
    """A lhotse manifest may even name commands."""
    assert refusals(run(data__train=[{"type": kind, "path": "inside/x"}]), projects)[0][0] == "data.train.0.path"
    shared = str(tmp_path / "shared" / "x")
    assert refusals(run(data__train=[{"type": kind, "path": shared}]), projects) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"output": "/tmp/elsewhere"}, "output"),
        ({"data__train": [{"type": "hub", "name": "someone/data"}]}, "data.train.0"),
        ({"data__train": [{"type": "corpus", "name": "ljspeech"}]}, "data.train.0"),
        ({"improve": {"rounds": 0}, "data__test": {"t": {"type": "synth", "texts": "digits", "count": 5}}}, "improve"),
        ({"callbacks": [{"type": "tracking", "wandb": {}}]}, "callbacks.0.wandb"),
        ({"data__eval": {"../../x": {"type": "synth", "texts": "digits", "count": 5}}}, "data.eval"),
        ({"data__augment": {"noise": {"paths": ["/home"]}}}, "data.augment.noise.paths.0"),
        ({"model": {"type": "whisper", "config": {"auto_map": {"AutoModel": "x.Y"}}}}, "model.config.auto_map"),
        (
            {"model": {"type": "whisper", "config": {"attn_implementation": "someone/kernel"}}},
            "model.config.attn_implementation",
        ),
        ({"model": {"type": "whisper", "config": {"text_config": {"_name_or_path": "x"}}}}, "model.config.text_config"),
        ({"model": {"type": "whisper", "config": {"paths": ["/etc"]}}}, "model.config.paths"),
    ],
)
def test_what_is_for_the_owner_alone(projects, change, key):
    refused = refusals(run(**change), projects)
    assert len(refused) == 1 and refused[0][0].startswith(key)


@pytest.mark.parametrize("key", ["base", "plugin", "plugins", "resume_from", "model__trust_remote_code"])
def test_keys_that_would_load_code_or_other_files_do_not_exist(projects, key):
    for projects.guarded in (True, False):
        with pytest.raises(ConfigError, match=key.rpartition("__")[2]):
            checked(dump(run(**{key: "/tmp/x.py"})), projects)


def test_a_plug_in_is_not_run_for_others(projects):
    from stentor.engine.callback import Callback

    class Foreign(Callback):
        type: Literal["foreign"] = "foreign"

    Foreign.__module__ = "my_plugin"
    try:
        assert refusals(run(callbacks=[{"type": "foreign"}]), projects)[0][0] == "callbacks.0"
    finally:
        del Callback.choices()["foreign"]


def test_every_text_of_the_schema_is_known_here():
    """A new key that may hold a text has to be looked at, and put into one of the lists."""
    text_keys = set()
    for entry in entries(Config):
        if entry.path[0] in ("prepare", "improve") and len(entry.path) > 1:
            continue  # refused as a whole
        if not entry.owner.__module__.startswith("stentor."):
            continue  # a plug-in of another test in this process
        kinds = list(_leaves(entry.field.annotation))
        if str in kinds or Any in kinds:
            owner = next(n for n, f in entry.owner.model_fields.items() if f is entry.field)
            text_keys.add((f"{_owner(entry.owner, owner)}.{entry.path[-1]}", Any in kinds))
    texts = {key for key, open_mapping in text_keys if not open_mapping} - {"Config.stages"}
    assert texts - NOT_PATHS - PATHS - FREE - set(REFUSED) == set()
    assert {key for key, _ in text_keys} >= FREE
    assert {f"{_owner(e.owner, n)}.{n}" for e in entries(Config) for n in e.owner.model_fields} >= set(REFUSED)


def test_every_path_of_the_schema_is_held_inside(projects):
    """Whatever kind of section it is in: all values that are paths go the one way through `_PathPolicy.path`."""
    seen = set()
    for entry in entries(Config):
        if Path in set(_leaves(entry.field.annotation)):
            seen.add(entry.path[-1])
    assert {"path", "paths", "from", "to", "cache", "audio", "uem", "statistics", "audio_folder"} <= seen
    guard = _PathPolicy(projects.folder, ())
    for value in (Path("/etc/passwd"), [Path("/etc/passwd")], (Path("../x"),)):
        assert list(guard.value(value, ("key",), False, False))
    sources = {
        name
        for name, kind in Source.choices().items()
        if any(Path in _leaves(field.annotation) for field in kind.model_fields.values())
    }
    assert sources - OWN == {"audio_folder", "manifest", "shards", "rttm", "corpus", "speech_list"}


def _leaves(annotation: Any) -> Any:
    """The plain types in an annotation."""
    for kind in alternatives(annotation):
        if get_origin(kind) is Literal:
            continue
        args = [a for a in get_args(kind) if a is not Ellipsis]
        if get_origin(kind) is dict:
            args = args[1:]
        if args:
            for inner in args:
                yield from _leaves(inner)
        else:
            yield kind


def test_a_config_that_is_too_long_is_not_read(projects, monkeypatch):
    monkeypatch.setattr("stentor.studio.runs.path_policy.load_text", lambda text: pytest.fail("it was read"))
    with pytest.raises(ConfigError, match="200001 characters is too long"):
        checked("x" * 200_001, projects)
