"""docs/serve.md leaves no field, route and metric out; the page /docs works without the internet."""

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from browser import Browser, chromium
from stentor.serve.app import create_app
from stentor.serve.registry import Registry
from stentor.serve.service import Metrics, Service
from stentor.serve.speech import SpeechForm
from stentor.serve.timings import AlignmentForm, DiarizationForm
from stentor.serve.transcriptions import ServerVad, TranscriptionForm

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")


def test_every_field_is_named():
    for form in (TranscriptionForm, ServerVad, SpeechForm, DiarizationForm, AlignmentForm):
        missing = [name for name in form.model_fields if not re.search(rf"[`\"]{name}(\[\])?[`\"]", PAGE)]
        assert not missing, form.__name__


def test_every_route_and_metric_is_named():
    service = Service(Registry([], {}))
    paths = create_app(service).openapi()["paths"]
    assert len(paths) == 11 and all(path.partition("{")[0] in PAGE for path in paths)
    metrics = {f"{m.name}{'_total' * (m.type == 'counter')}" for m in Metrics().registry.collect()}
    assert metrics == set(re.findall(r"`(stentor_\w+)`", PAGE))
    service.close()


def test_the_page_needs_nothing_from_elsewhere():
    service = Service(Registry([], {}))
    with TestClient(create_app(service, ["a-key-of-sixteen-characters"]), base_url="http://localhost") as client:
        page = client.get("/docs")
        forms = client.get("/openapi.json").json()["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]
    assert page.headers["content-type"].startswith("text/html")
    assert set(re.findall(r"(?:src|href|fetch\()[=\s]*[\"']([^\"']*)", page.text)) == {"data:,", "openapi.json"}
    assert "://" not in page.text
    schema = forms["application/json"]["schema"]
    speed = schema["properties"]["speed"]
    assert schema["required"] == ["model", "input"] and (speed["minimum"], speed["maximum"]) == (0.25, 4.0)


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="no Chromium, or no Playwright")
def test_the_page_in_a_browser(export, tone, serve, tmp_path):
    """A form that is filled in and sent, with a file."""
    server, audio, form = serve(export()), tone("a.wav", (0.5, -10)), "details[id='/v1/audio/transcriptions']"
    with Browser(tmp_path) as browser:
        page = browser.open(f"{server.url}/docs")
        page.wait("document.querySelectorAll('details').length === 11", "every route")
        page.click(f"{form} summary")
        page.give(f"{form} [name=file]", audio)
        values = {"model": "model", "response_format": "verbose_json", "timestamp_granularities[]": "segment"}
        for name, value in values.items():
            page.js(f"(document.querySelector(`{form} [name='{name}']`).value = {value!r})")
        page.click(f"{form} button")
        page.wait(f"document.querySelector(`{form} pre`)?.textContent.includes('segments')", "an answer")
        assert page.text(f"{form} pre").startswith("200 OK application/json")
        assert not page.errors and page.hosts == {"127.0.0.1"}


def test_examples_are_python():
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        compile(code, "serve.md", "exec")
