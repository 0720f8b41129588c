"""Requests made from our OpenAPI description, right and wrong ones: the answers are those that it describes."""

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

EXAMPLES = 15
STATUSES = {200, 400, 404, 405, 413, 415}
"""Of a server that is ready and has no keys."""
NAMED = {"model": ["whisper-1", "tts-1", "diarizer", "unknown"], "voice": ["alloy", "default"]}


@pytest.fixture
def schema(strangers, tone):
    """The description, with what only a client knows who has asked: names of models and voices, and what audio is."""
    raw = strangers.http.get("/openapi.json").json()
    for path in raw["paths"].values():
        for content in path.get("post", {}).get("requestBody", {}).get("content", {}).values():
            fields = content["schema"]["properties"]
            fields |= {name: {**fields[name], "enum": names} for name, names in NAMED.items() if name in fields}
    audio = [tone("a.wav", (0.5, -10)).read_bytes(), tone("b.flac", (0.3, -10), (0.5, None)).read_bytes(), b"RIFF"]
    schemathesis.openapi.format("binary", st.sampled_from(audio))
    return schemathesis.openapi.from_dict(raw)


def test_answers_are_as_described(strangers, schema):
    asked = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:

            @given(operation.as_strategy(generation_mode=mode))
            @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))
            def ask(case):
                answer = case.call(base_url=strangers.url)
                print(mode, operation.label, answer.status_code, str({k:v for k,v in case.body.items() if k!='file'})[:150] if isinstance(case.body,dict) else str(case.body)[:50], answer.text[:150] if answer.status_code!=200 else "")
                asked.add((operation.label, answer.status_code))
                try:
                  case.validate_response(answer, excluded_checks=[positive_data_acceptance])
                except BaseException as e:
                  print("FAIL", repr([(str(type(x).__name__), str(x)[:200]) for x in getattr(e,'exceptions',[e])])[:800])

            try:
              ask()
            except BaseException as e:
              print("NOT", operation.label, mode, repr(e)[:300])
    print(sorted(asked))
