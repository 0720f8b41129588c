"""Requests as clients of other servers send them: a row is a report, the fields of the form and the answer."""

import sys
from pathlib import Path

import pytest

for package in ("fastapi", "python_multipart", "prometheus_client"):
    pytest.importorskip(package)
sys.path.insert(0, str(Path(__file__).parent))

from stranger_row import MODELS, NEVER  # noqa: E402
from stranger_sounds import CLIP  # noqa: E402

SPOKEN = "one two three"
REQUESTS = (
    ("openai/openai-python/issues/314", {"response_format": "text"}, 200, SPOKEN),
    ("speaches-ai/speaches/issues/16", {"response_format": "vtt"}, 200, "WEBVTT"),
    ("vllm-project/vllm/pull/46680", {"response_format": "srt"}, 200, "00:00:00,0"),
    ("vercel/ai/pull/8011", {"response_format": "verbose_json", "timestamp_granularities[]": "word"}, 200, '"words"'),
    ("AAClause/nvda-OpenAI/issues/73", {"response_format": "subtitles"}, 400, "srt"),
    ("ggml-org/whisper.cpp/pull/1578", {"response-format": "vtt"}, 400, "response_format"),
    ("SYSTRAN/faster-whisper/issues/361", {"vad_filter": "true"}, 200, SPOKEN),
    ("m-bain/whisperX/issues/251", {"language": "English", "response_format": "verbose_json"}, 200, '"language":"en'),
    ("ctsdownloads/easyspeak/pull/177", {"language": "klingon"}, 400, "klingon"),
    ("huggingface/transformers/issues/36183", {"temperature": "warm"}, 400, "temperature"),
    ("tetherto/qvac/pull/3500", {"beam_size": "5", "best_of": "5"}, 200, SPOKEN),
    ("QuentinFuxa/WhisperLiveKit/issues/6", {"language": "auto"}, 200, SPOKEN),
)
FILES = (
    ("speaches-ai/speaches/issues/164", b"no audio", "a.wav", 400),
    ("leptonai/examples/pull/34", b"", "a.wav", 400),
    ("SYSTRAN/faster-whisper/issues/637", None, "blob", 200),
    ("pytorch/audio/issues/3958", None, "a.mp3", 200),
)
URL = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def client():
    """A client of a server of the model that hears words."""
    from fastapi.testclient import TestClient

    from stentor.serve.app import create_app
    from stentor.serve.registry import load_models
    from stentor.serve.service import Limits, Service

    registry = load_models([str(MODELS["{words}"])], [f"whisper-1={MODELS['{words}']}"], devices=("cpu",))
    with TestClient(create_app(Service(registry, Limits())), base_url="http://localhost") as client:
        while client.get("/health").json()["status"] == "loading":
            pass
        yield client


def plain(text: str) -> str:
    assert not [word for word in NEVER if word in text], text
    return text


@pytest.mark.parametrize(("report", "fields", "status", "part"), REQUESTS, ids=[r[0] for r in REQUESTS])
def test_fields(client, report, fields, status, part):
    answer = client.post(URL, data={"model": "whisper-1", **fields}, files={"file": ("a.flac", CLIP.read_bytes())})
    assert (answer.status_code, part in plain(answer.text)) == (status, True), answer.text


@pytest.mark.parametrize(("report", "content", "name", "status"), FILES, ids=[f[0] for f in FILES])
def test_files(client, report, content, name, status):
    content = CLIP.read_bytes() if content is None else content
    answer = client.post(URL, data={"model": "whisper-1"}, files={"file": (name, content)})
    assert (answer.status_code, SPOKEN in plain(answer.text)) == (status, status == 200), answer.text
