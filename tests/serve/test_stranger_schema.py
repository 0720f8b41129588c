"""Requests made from our OpenAPI description, right and wrong ones: the answers are those that it describes."""

import copy

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

STATUSES = {200, 400, 404, 405}
"""Of a server that is ready and has no keys, for small requests."""
HINTS = {
    "language": ["en", "de"],
    "languages": {"type": "array", "items": {"enum": ["en"]}, "maxItems": 1},
    "voice": ["alloy", "default"],
    "input": ["one two", "three."],
    "text": ["one two", "three."],
    "instructions": ["quick fox"],
    "chunking_strategy": ["auto"],
    "known_speaker_names": {"type": "array", "maxItems": 0},
    "known_speaker_references": {"type": "array", "maxItems": 0},
}
"""What a client knows who has read more than the description, for half of the requests; and names of models:"""
MODELS = {"speech": "tts-1", "diarizations": "diarizer"}
EXAMPLES = 8


def hinted(description: dict, hints: dict) -> dict:
    description = copy.deepcopy(description)
    for path, methods in description["paths"].items():
        known = {"model": [MODELS.get(path.rpartition("/")[2], "whisper-1")], **hints}
        for content in methods.get("post", {}).get("requestBody", {}).get("content", {}).values():
            fields = content["schema"]["properties"]
            for name in fields.keys() & known.keys():
                fields[name] = {"enum": known[name]} if isinstance(known[name], list) else known[name]
        for parameter in methods.get("get", {}).get("parameters", []):
            parameter["schema"] = {"enum": [*known["model"], "unknown"]}
    return description


@pytest.mark.long
def test_answers_are_as_described(strangers, tone):
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    description = strangers.http.get("/openapi.json").json()
    assert len(description["paths"]) == 11
    audio = [tone("a.wav", (0.5, -10)).read_bytes(), tone("b.flac", (0.3, -10), (0.5, None)).read_bytes(), b"RIFF"]
    schemathesis.openapi.format("binary", st.sampled_from(audio))
    answered = set()

    def ask(case):
        answer = case.call(base_url=strangers.url, timeout=300)
        answered.add((case.operation.label, answer.status_code))
        assert answer.status_code in STATUSES
        without = [positive_data_acceptance]  # fields are right or wrong together
        if case.media_type == "multipart/form-data":  # where any value is a text
            without.append(negative_data_rejection)
        case.validate_response(answer, excluded_checks=without)

    few = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for mode, hints in ((schemathesis.GenerationMode.POSITIVE, HINTS), (schemathesis.GenerationMode.NEGATIVE, {})):
        for result in schemathesis.openapi.from_dict(hinted(description, hints)).get_all_operations():
            operation = result.ok()
            if mode is schemathesis.GenerationMode.POSITIVE or operation.method == "post":
                few(given(operation.as_strategy(generation_mode=mode))(ask))()
    labels = {f"{method.upper()} {path}" for path, methods in description["paths"].items() for method in methods}
    assert {label for label, status in answered if status == 200} == labels
    assert {label for label, status in answered if status == 400} == {label for label in labels if "POST" in label}
