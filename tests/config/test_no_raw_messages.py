"""Wrong values at every entry: no message of pydantic's reaches a user."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.config.load import load_text, parse_source
from stentor.errors import ConfigError
from stentor.models.base import Family
from stentor.section.explain import saved_in, validated
from stentor.tasks.decode_checks import Checks

RAW = re.compile(
    r"(Input|String|List|Dictionary|Tuple|Value|Number|URL|Keys?) (should|error)|Extra inputs|"
    r"Field required|unable to (parse|interpret)|validation error|[Pp]ydantic|Assertion failed|union_tag|function-"
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | st.sampled_from(["", "on", "hot", "1e9", "é"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "lr", "a.b"]), inner, max_size=2)
    ),
    max_leaves=3,
)
BASE = {"name": "a", "task": "transcribe", "model": {"type": "transformer"}, "data": {"train": [{"type": "jsonl"}]}}
KEYS = ["task", "model", "data", "optim", "train", "losses", "schedule", "stages", "callbacks", "nmae", "seed"]


def checked(call, *errors):
    """Runs a call whose error, if there is one, is ours."""
    try:
        call()
    except errors as error:
        assert str(error) and not RAW.search(str(error)), str(error)


@settings(max_examples=60, deadline=None)
@given(key=st.sampled_from(KEYS), inner=st.sampled_from([None, "type", "lr", "train", "steps"]), value=VALUES)
def test_configs(key, inner, value):
    checked(lambda: load_text(json.dumps({**BASE, key: {inner: value} if inner else value})), ConfigError)


@settings(max_examples=40, deadline=None)
@given(key=st.sampled_from(["repeat", "limit", "path", "language", "wher", "channel", "where"]), value=VALUES)
def test_sources_and_sections(key, value):
    checked(lambda: parse_source(f"type=jsonl,path=a.jsonl,{key}={value}"), ConfigError)
    checked(lambda: validated(Checks, {"no_speech": value, key: value}), ConfigError)

    def read(tmp="config.json"):
        with saved_in(tmp):
            Family.model_validate({"type": "transformer", "kind": value, key: value})

    checked(read, ConfigError)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_requests(data):
    pytest.importorskip("fastapi")
    from stentor.serve import speech, timings, transcriptions
    from stentor.serve.errors import ApiError
    from stentor.serve.realtime import session

    modules = (speech.SpeechForm, session.ClientSecretForm, session.Settings, timings.AlignmentForm)
    forms = [*modules, timings.DiarizationForm, transcriptions.TranscriptionForm, transcriptions.TranslationForm]
    form = data.draw(st.sampled_from(forms))
    names = st.sampled_from([*form.model_fields, "languge", "x"])
    sent = data.draw(st.dictionaries(names, VALUES | st.fixed_dictionaries({"input": VALUES}), max_size=3) | VALUES)
    checked(lambda: form.requested(sent), ApiError)
    checked(lambda: form.read(sent), ApiError)
