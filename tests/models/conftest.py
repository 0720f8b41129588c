import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the tiny models


def manifest(corpus, folder, languages):
    """Writes one with a clip of the tiny corpus for each language, None for one that is not named."""
    lines = (corpus / "train.jsonl").read_text().splitlines()[: len(languages)]
    records = [json.loads(line) for line in lines]
    for record, language in zip(records, languages):
        record |= {"audio_path": str(corpus / record["audio_path"])} | ({"language": language} if language else {})
    path = folder / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


@pytest.fixture(scope="session")
def four(corpus, tmp_path_factory):
    """A manifest with four clips of the tiny corpus, one without a language."""
    return manifest(corpus, tmp_path_factory.mktemp("four"), [None, "en", "en", "en"])


@pytest.fixture(scope="session")
def eight(corpus, tmp_path_factory):
    """A manifest with eight clips of the tiny corpus, all of a known language."""
    return manifest(corpus, tmp_path_factory.mktemp("eight"), 8 * ["en"])
