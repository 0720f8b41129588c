"""docs/serve.md leaves no field, route and metric out."""

import re
from pathlib import Path

from stentor.serve.app import create_app
from stentor.serve.forms import ServerVad, TranscriptionForm
from stentor.serve.metrics import Metrics
from stentor.serve.registry import Registry
from stentor.serve.routes.timings import AlignmentForm, DiarizationForm
from stentor.serve.service import Service
from stentor.serve.speaking import SpeechForm

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")


def test_every_field_is_named():
    for form in (TranscriptionForm, ServerVad, SpeechForm, DiarizationForm, AlignmentForm):
        missing = [name for name in form.model_fields if not re.search(rf"[`\"]{name}(\[\])?[`\"]", PAGE)]
        assert not missing, form.__name__


def test_every_route_and_metric_is_named():
    service = Service(Registry([], {}))
    paths = create_app(service).openapi()["paths"]
    assert len(paths) == 10 and all(path.partition("{")[0] in PAGE for path in paths)
    metrics = {f"{m.name}{'_total' * (m.type == 'counter')}" for m in Metrics().registry.collect()}
    assert metrics == set(re.findall(r"`(stentor_\w+)`", PAGE))
    service.close()


def test_examples_are_python():
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        compile(code, "serve.md", "exec")
