"""Sentences of a corpus on the Hub, to be read aloud: texts alone, streamed by a process that is ended after a while.

`python -m stentor.studio.dataset.hub_prompts SOURCE LANGUAGE COUNT` prints a JSON object a line: `{"text": ...}` for
each sentence as it comes, then `{"end": true}`, or `{"error": sentence}`. A process, because a network that answers
nothing can hold a thread for minutes, and because the libraries for it are large.
"""

import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from stentor.errors import DataError, StentorError, without_secrets
from stentor.sources.base import Source
from stentor.studio.files import clean_text
from stentor.studio.phrases import language_name
from stentor.studio.texts import say

LIMIT = 20.0
"""Seconds after which what has come is taken, or the Hub given up."""
LEAST = 10
"""Sentences that are worth taking where fewer than wanted came."""
LOOKED = 50
"""Texts that are looked at for each sentence that is wanted, at most."""
HIDDEN = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")
"""Characters that turn the writing direction of what follows: a phrase would look other than it is."""


@dataclass(frozen=True)
class HubCorpus:
    """Where sentences of the Hub come from: a preset of the `hub` source (see sources/hub_presets.py)."""

    preset: str
    name: str
    """What people call it."""
    licence: str
    subset: str | None = None
    sentences_only: bool = False
    """Its texts are pieces of speech: only those that begin and end like a sentence are taken."""


CORPORA = {
    "fleurs": HubCorpus("fleurs", "FLEURS", "CC-BY-4.0"),
    "common_voice": HubCorpus("common_voice", "Common Voice", "CC0-1.0"),
    "granary": HubCorpus("granary", "Granary", "CC-BY-4.0", subset="ytc", sentences_only=True),
}


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
        if phrase is not None and (key := plain(phrase)) not in seen:
            seen.add(key)
            yield phrase


def readable(text: str, language: str, sentences_only: bool = False) -> str | None:
    """A sentence of a corpus as it can be read aloud, or None: too long or short for one breath, with digits or marks
    that everybody reads otherwise, and, with `sentences_only`, not a complete sentence."""
    text = clean_text(text).strip("\"'“”„«» ")
    if not 8 <= len(text) <= 160 and not (_unspaced(text) and 5 <= len(text) <= 60):
        return None
    if not _unspaced(text) and not 3 <= len(text.split()) <= 20:
        return None
    if _unspaced(text) and len(text) > 60:
        return None
    if any(c in '<>{}[]|\\/@#*_=~^&+%()"' or (c.isnumeric() and not _unspaced(c)) or c in HIDDEN for c in text):
        return None
    if sum(c.isalpha() or unicodedata.category(c)[0] == "M" for c in text) < 0.6 * len(text.replace(" ", "")):
        return None
    if text.upper() == text and text.lower() != text:
        return None
    if sentences_only and (text[0].islower() or unicodedata.category(text[-1]) != "Po" or text[-1] in ",;:"):
        return None
    return text


def plain(text: str) -> str:
    """What two phrases are compared by: no case, no punctuation."""
    return re.sub(r"[\W_]+", " ", text.casefold()).strip() or text


def _unspaced(text: str) -> bool:
    """Whether it is written without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese)."""
    names = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
    letter = next((c for c in text if c.isalpha()), "a")
    return unicodedata.name(letter, "").startswith(names)


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
