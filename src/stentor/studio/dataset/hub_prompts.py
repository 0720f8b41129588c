"""Sentences of a corpus on the Hub, to be read aloud: texts alone, streamed by a process that is ended after a while.

`python -m stentor.studio.dataset.hub_prompts SOURCE LANGUAGE COUNT` prints a JSON object a line: `{"text": ...}` for
each sentence as it comes, then `{"end": true}`, or `{"error": sentence}`. A process, because a network that answers
nothing can hold a thread for minutes, and because the libraries for it are large.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from stentor.errors import DataError, StentorError, without_secrets
from stentor.sources.base import Source
from stentor.studio.dataset.prompts import CORPORA, _plain, language_name, readable
from stentor.studio.texts import say

LIMIT = 20.0
"""Seconds after which what has come is taken, or the Hub given up."""
LEAST = 10
"""Sentences that are worth taking where fewer than wanted came."""
LOOKED = 50
"""Texts that are looked at for each sentence that is wanted, at most."""


def fetch(source: str, language: str, count: int, limit: float = LIMIT) -> list[str]:
    """`count` different sentences of a corpus, or as many as come within `limit` seconds.

    Raises DataError with one sentence when there are fewer than ten: the Hub is out of reach, the corpus is gated or
    has not this language.
    """
    from stentor.studio.runs.settings import reachable

    name = CORPORA[source].name
    if not reachable():
        raise DataError(say("phrases_offline", name=name))
    command = [sys.executable, "-m", "stentor.studio.dataset.hub_prompts", source, language, str(count)]
    # A request that hangs is given up before the whole is.
    waits = {"HF_HUB_ETAG_TIMEOUT": "8", "HF_HUB_DOWNLOAD_TIMEOUT": "8", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit,
            env={**os.environ, **waits, "PYTHONSAFEPATH": "1"},
            start_new_session=True,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    rows = [json.loads(line) for line in said[: said.rfind(b"\n") + 1].splitlines()]
    phrases = [row["text"] for row in rows if "text" in row]
    error, ended = next((row["error"] for row in rows if "error" in row), ""), any("end" in row for row in rows)
    if len(phrases) >= min(LEAST, count):
        return phrases[:count]
    if error:
        raise DataError(without_secrets(say("phrases_refused", name=name, why=error)))
    if ended:
        raise DataError(say("phrases_few", name=name, language=language_name(language)))
    raise DataError(say("phrases_late", name=name, seconds=round(limit)))


def sentences(texts: Iterator[str], language: str, count: int, sentences_only: bool = False) -> Iterator[str]:
    """The first `count` texts that can be read aloud, each once."""
    seen: set[str] = set()
    for looked, text in enumerate(texts):
        if len(seen) >= count or looked >= LOOKED * count:
            return
        phrase = readable(text, language, sentences_only)
        if phrase is not None and (key := _plain(phrase)) not in seen:
            seen.add(key)
            yield phrase


def main(source: str, language: str, count: str) -> None:
    """What the process does."""
    corpus = CORPORA[source]
    try:
        hub = Source.model_validate(
            {"type": "hub", "preset": corpus.preset, "subset": corpus.subset, "language": language, "stream": True}
        )
        for phrase in sentences(hub.texts(), language, int(count), corpus.sentences_only):  # type: ignore[attr-defined]
            _tell({"text": phrase})
        _tell({"end": True})
    except StentorError as error:
        _tell({"error": str(error)})
    except Exception as error:  # of a library: one sentence, never a traceback
        _tell({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def _tell(row: dict[str, object]) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
    sys.stdout.flush()
    os._exit(0)  # threads of the libraries that still wait for the network
