import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the tiny models


@pytest.fixture(scope="session")
def four(corpus, tmp_path_factory):
    """A manifest with four clips of the tiny corpus, one without a language."""
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()[:4]]
    for i, record in enumerate(records):
        record |= {"audio_path": str(corpus / record["audio_path"])} | ({"language": "en"} if i else {})
    path = tmp_path_factory.mktemp("four") / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path
