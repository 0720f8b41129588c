"""The tests that openai-python has for its audio calls, run against our server.

They come from a checkout that the environment variable OPENAI_PYTHON names. Copies of them run as they are, but for the
placeholders of `PLACEHOLDERS`, which no server can take for what they stand for. Their tests of speech answer
themselves (respx); they run like that, and once more without the mock (`UNMOCKED`).
"""

import base64
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_limits import until

pytestmark = pytest.mark.slow

PLACEHOLDERS = {
    'b"Example data"': 'open(os.environ["EXAMPLE"], "rb").read()',
    'language="language"': 'language="en"',
    'languages=["string"]': 'languages=["en"]',
    'known_speaker_references=["string"]': 'known_speaker_references=[os.environ["REFERENCE"]]',
    # Word times with `json` are refused, as they are by OpenAI.
    'timestamp_granularities=["word"]': 'timestamp_granularities=["segment"]',
}
UNMOCKED = {
    r"    @pytest\.mark\.respx2\(.*\)\n": "",
    r", respx2_mock: MockRouter": "",
    r" +respx2_mock\.post\(.*\n": "",
    r"assert speech\.json\(\) == .*": "assert len(speech.content) > 1000",
}
STAND_IN = '''\
"""In the place of pytest-asyncio: anyio's plugin runs the tests, in one loop."""
import inspect
import pytest

def is_async_test(item):
    return inspect.iscoroutinefunction(item.function)

@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"
'''


def copied(checkout: Path, folder: Path) -> None:
    """Their tests of audio, and what those import, with other placeholders."""
    audio = folder / "tests" / "api_resources" / "audio"
    shutil.copytree(checkout / "tests" / "api_resources" / "audio", audio)
    shutil.copytree(checkout / "tests" / "respx2", folder / "tests" / "respx2")
    for name in ("__init__.py", "conftest.py", "utils.py"):
        shutil.copy(checkout / "tests" / name, folder / "tests")
    (folder / "pytest_asyncio.py").write_text(STAND_IN)
    (folder / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n")
    for file in audio.glob("test_*.py"):
        text = file.read_text()
        for placeholder, value in PLACEHOLDERS.items():
            text = text.replace(placeholder, value)
        file.write_text(text)
    text = (audio / "test_speech.py").read_text()
    for pattern, value in UNMOCKED.items():
        text, count = re.subn(pattern, value, text)
        assert count
    (audio / "test_speech_unmocked.py").write_text(text)


def test_the_tests_of_the_client(strangers, tone, tmp_path):
    if "OPENAI_PYTHON" not in os.environ:
        pytest.skip("OPENAI_PYTHON names no checkout of openai-python")
    folder, example = tmp_path / "theirs", tone("example.wav", (3, -10))
    copied(Path(os.environ["OPENAI_PYTHON"]), folder)
    reference = f"data:audio/wav;base64,{base64.b64encode(example.read_bytes()).decode()}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI")},
        "TEST_API_BASE_URL": f"{strangers.url}/v1",
        "EXAMPLE": str(example),
        "REFERENCE": reference,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    files = ["transcriptions", "translations", "speech", "speech_unmocked"]
    command = [sys.executable, "-m", "pytest", "-p", "anyio.pytest_plugin", "-p", "pytest_asyncio", "-q", "-rs"]
    command += [f"tests/api_resources/audio/test_{name}.py" for name in files]
    with_aiohttp = importlib.util.find_spec("aiohttp") is not None
    if not with_aiohttp:
        command += ["-k", "not aiohttp"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-5000:]
    # 8, 4, 4 and 4 tests; each with two clients, and two or three asynchronous ones; the mock knows no aiohttp.
    passed = 20 * 4 + (16 if with_aiohttp else 0)
    assert f"{passed} passed" in done.stdout
    for route, tests in (("transcriptions", 8), ("translations", 4), ("speech", 4)):
        count = tests * (5 if with_aiohttp else 4)
        line = f'stentor_requests_total{{route="/v1/audio/{route}",status="200"}} {count}.0\n'
        until(lambda line=line: line in strangers.http.get("/metrics").text)
