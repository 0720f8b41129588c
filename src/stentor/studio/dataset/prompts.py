"""Prompts, phrases to read aloud: the built-in ones, a person's own list, or sentences of a corpus on the Hub.

    datasets/NAME/dataset.json         `phrases`: {"source": builtin | own | fleurs | common_voice | granary, ...}
    datasets/NAME/phrases.txt          the own list, a phrase a line
    datasets/NAME/phrases-SOURCE.txt   what was fetched from the Hub

Reading them never touches the network; only `set_source` with a corpus of the Hub does, in a process of its own that is
ended when it takes too long: a network that answers nothing can hold a thread for minutes, and the libraries for it are
large. `python -m stentor.studio.dataset.prompts SOURCE LANGUAGE COUNT` prints a JSON object a line: `{"text": ...}` for
each sentence as it comes, then `{"end": true}`, or `{"error": sentence}`.

A recording remembers its phrase by `prompt_id`, so whatever the source is changed to, and back, it belongs to the same
phrase.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

from stentor.data.layouts.transcripts import table_texts
from stentor.data.outliers import unspaced
from stentor.data.system import NEW_GROUP
from stentor.errors import ConfigError, DataError, StentorError, without_secrets
from stentor.section.explain import wrong_value
from stentor.sources.base import Source
from stentor.sources.hub_presets import PRESETS
from stentor.studio import phrases as builtin
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import clean_text, write_bytes
from stentor.studio.phrases import NAMES, OTHER_CODES, language_name
from stentor.studio.texts import say
from stentor.text.languages import label
from stentor.text.transcript_formats import decoded, lines_of

MOST_PHRASES = 5000
"""Phrases of the longest list."""
MOST_BYTES = 2 * 2**20
"""Bytes of the largest list."""
LONGEST = 300
"""Characters of the longest phrase of an own list: few people read more in one breath."""
WANTED = 200
"""Phrases that are fetched from the Hub unless another number is asked for."""
MOST_PROBLEMS = 10
LIMIT = 20.0
"""Seconds after which what has come is taken, or the Hub given up."""
LEAST = 10
"""Sentences that are worth taking where fewer than wanted came."""
LOOKED = 50
"""Texts that are looked at for each sentence that is wanted, at most."""
HIDDEN = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")
"""Characters that turn the writing direction of what follows: a phrase would look other than it is."""


SUBSETS = {"fleurs": "", "common_voice": "", "granary": "ytc"}
"""Presets of the Hub that sentences come from, and their subset."""
CORPORA = {key: PRESETS[key][subset] for key, subset in SUBSETS.items()}


class PromptSource(NamedTuple):
    """A place that phrases of a language can come from."""

    key: str
    label: str
    online: bool = False
    """It needs the Hub, unless it was fetched before."""


def languages() -> list[tuple[str, str]]:
    """(label, code) of the languages to choose from: those with built-in phrases first, then all that models know."""
    ready = builtin.languages()
    others = sorted((label(code), code) for code in NAMES if code not in ready)
    return [(label(code), code) for code in ready] + [(say("language_bare", name=name), code) for name, code in others]


def prompt_id(text: str, language: str | None) -> str:
    """Key of a phrase in its recording: 12 hexadecimal digits of the text and its language."""
    key = f"{language or ''}\n{clean_text(text)}"
    return hashlib.blake2b(key.encode(), digest_size=6).hexdigest()


def language_of(dataset: DataSet) -> str | None:
    """The language that a data set is spoken in; None for one that was made without."""
    return OTHER_CODES.get(code := dataset.about.get("language"), code)  # type: ignore[arg-type]


def source_of(dataset: DataSet) -> str:
    """Key of the source in use: as chosen, else the built-in phrases."""
    chosen = dataset.about.get("phrases")
    key = chosen.get("source") if isinstance(chosen, dict) else None
    return key if key in ("own", *CORPORA) else "builtin"


def phrases_of(dataset: DataSet) -> list[str]:
    """The phrases of a data set in their order, never two alike. Empty for a language without phrases.

    Reads one small file. A list that is gone or damaged gives way to the built-in phrases.
    """
    source = source_of(dataset)
    if source != "builtin" and (stored := stored_phrases(dataset, source)):
        return stored
    language = language_of(dataset)
    return builtin.phrases(language) if language in builtin.languages() else []


def sources(language: str | None) -> list[PromptSource]:
    """Where phrases of a language can come from, the built-in ones first where there are any."""
    available = []
    if language in builtin.languages():
        available.append(PromptSource("builtin", say("phrases_builtin", count=len(builtin.phrases(str(language))))))
    available.append(PromptSource("own", say("phrases_own_list")))
    for key, corpus in CORPORA.items():
        if language is not None and corpus.spelling(language):
            available.append(
                PromptSource(key, say("phrases_hub", name=corpus.title, licence=corpus.licence), online=True)
            )
    return available


def set_source(dataset: DataSet, source: str, phrases: list[str] | None = None, count: int = WANTED) -> str:
    """Change what a data set reads; answers a sentence for the person. Recordings stay, and belong to their phrases.

    `phrases`: the new own list (see `own_list`); without one, the list of before. A corpus of the Hub is asked for
    `count` sentences, unless as many were fetched before. Raises ConfigError for a source that the language does not
    have, DataError with one sentence when the Hub cannot be reached or the corpus not be had: then nothing was changed.
    """
    language = language_of(dataset)
    known = {entry.key: entry for entry in sources(language)}
    if source not in known:
        if source in CORPORA:
            raise ConfigError(say("phrases_no_language", name=CORPORA[source].title, language=language_name(language)))
        raise ConfigError(say("phrases_unknown"))
    facts: dict[str, Any] = {"source": source}
    if source == "own":
        lines = stored_phrases(dataset, "own") if phrases is None else phrases
        if not lines:
            raise ConfigError(say("phrases_none_given"))
        if len(lines) > MOST_PHRASES:
            raise DataError(say("phrases_too_many", count=len(lines), most=MOST_PHRASES))
        if phrases is not None:
            _store_phrases(dataset, "own", phrases)
    elif source in CORPORA:
        corpus = CORPORA[source]
        count = max(10, min(count, MOST_PHRASES))
        lines = stored_phrases(dataset, source)
        if len(lines) < count:
            lines = fetch(source, str(language), count)
            _store_phrases(dataset, source, lines)
        facts |= {"name": corpus.title, "licence": corpus.licence}
    else:
        lines = builtin.phrases(str(language))
    dataset.describe(phrases=facts)
    return say("phrases_set", count=len(lines))


def own_list(text: str = "", name: str | None = None, data: bytes = b"") -> list[str]:
    """The phrases of pasted lines, or of a txt, csv, tsv or jsonl file called `name`; each once.

    Raises DataError that lists what is wrong with its line: control characters and over-long phrases are refused.
    """
    where = name or say("pasted_lines")
    if len(data) > MOST_BYTES or len(text) > MOST_BYTES:
        raise ConfigError(say("phrases_too_large", name=where, most=MOST_BYTES // 2**20))
    content = decoded(where, data) if name is not None else text.removeprefix("\ufeff")
    rows = table_texts(where, data) if name is not None else None
    if rows is None:
        rows = list(enumerate(lines_of(content), 1))
    problems: list[str] = []
    phrases: dict[str, str] = {}
    for number, raw in rows:
        line = raw.replace("\t", " ").strip()
        if any(c in HIDDEN or unicodedata.category(c) in ("Cc", "Cs") for c in line):
            problems.append(say("phrase_control", where=where, line=number))
        elif len(line) > LONGEST:
            problems.append(say("phrase_long", where=where, line=number, count=len(line), most=LONGEST))
        elif line and any(c.isalpha() for c in line):
            phrases.setdefault(plain(line), clean_text(line))
        elif line:
            problems.append(say("phrase_letters", where=where, line=number))
        if len(problems) == MOST_PROBLEMS:
            break
    if problems:
        raise DataError("\n".join(problems))
    if not phrases:
        raise DataError(say("phrases_none_given"))
    return list(phrases.values())


def _file(source: str) -> str:
    return "phrases.txt" if source == "own" else f"phrases-{source}.txt"


def stored_phrases(dataset: DataSet, source: str) -> list[str]:
    """The person's own list or what was fetched from the Hub, in use or not. It may have been changed by hand: what is
    too long is cut."""
    path = dataset.folder / _file(source)
    data = path.read_bytes()[:MOST_BYTES] if path.is_file() else b""
    lines = data.decode("utf-8", "replace").split("\n")[:MOST_PHRASES]
    return list(dict.fromkeys(filter(None, (clean_text(line[:LONGEST]) for line in lines))))


def _store_phrases(dataset: DataSet, source: str, lines: list[str]) -> None:
    write_bytes(dataset.folder / _file(source), "".join(line + "\n" for line in lines).encode())


def fetch(source: str, language: str, count: int, limit: float = LIMIT) -> list[str]:
    """`count` different sentences of a corpus, or as many as come within `limit` seconds.

    Raises DataError with one sentence when there are fewer than ten: the Hub is out of reach, the corpus is gated or
    has not this language.
    """
    from stentor.studio.runs.settings import reachable

    name = CORPORA[source].title
    if not reachable():
        raise DataError(say("phrases_offline", name=name))
    command = [sys.executable, "-m", "stentor.studio.dataset.prompts", source, language, str(count)]
    # A request that hangs is given up before the whole is.
    waits = {"HF_HUB_ETAG_TIMEOUT": "8", "HF_HUB_DOWNLOAD_TIMEOUT": "8", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    env = {**os.environ, **waits, "PYTHONSAFEPATH": "1"}
    try:
        said = subprocess.run(command, timeout=limit, env=env, check=False, **NEW_GROUP, **pipes).stdout
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


def sentences(texts: Iterator[str], count: int, sentences_only: bool = False) -> Iterator[str]:
    """The first `count` texts that can be read aloud, each once."""
    seen: set[str] = set()
    for looked, text in enumerate(texts):
        if len(seen) >= count or looked >= LOOKED * count:
            return
        phrase = readable(text, sentences_only)
        if phrase is not None and (key := plain(phrase)) not in seen:
            seen.add(key)
            yield phrase


def readable(text: str, sentences_only: bool = False) -> str | None:
    """A sentence of a corpus as it can be read aloud, or None: too long or short for one breath, with digits or marks
    that everybody reads otherwise, and, with `sentences_only`, not a complete sentence."""
    text = clean_text(text).strip("\"'“”„«» ")
    spaced = 8 <= len(text) <= 160 and 3 <= len(text.split()) <= 20
    if not (5 <= len(text) <= 60 if unspaced(text) else spaced):
        return None
    marks = any(c in '<>{}[]|\\/@#*_=~^&+%()"' or (c.isnumeric() and not unspaced(c)) or c in HIDDEN for c in text)
    letters = sum(c.isalpha() or unicodedata.category(c)[0] == "M" for c in text)
    shouted = text.upper() == text and text.lower() != text
    cut = text[0].islower() or unicodedata.category(text[-1]) != "Po" or text[-1] in ",;:"
    wrong = marks or letters < 0.6 * len(text.replace(" ", "")) or shouted or (sentences_only and cut)
    return None if wrong else text


def plain(text: str) -> str:
    """Form of a phrase for comparison: no case, no punctuation."""
    return re.sub(r"[\W_]+", " ", text.casefold()).strip() or text


def main(source: str, language: str, count: str) -> None:
    """Entry point of the process."""

    def tell(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)

    try:
        hub = Source.model_validate(
            {"type": "hub", "preset": source, "subset": SUBSETS[source] or None, "language": language, "stream": True}
        )
        for phrase in sentences(hub.texts(), int(count), CORPORA[source].pieces):  # type: ignore[attr-defined]
            tell({"text": phrase})
        tell({"end": True})
    except StentorError as error:
        tell({"error": str(error)})
    except Exception as error:  # of a library: one sentence, never a traceback
        wrong = wrong_value(error) or f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        tell({"error": str(wrong)})


if __name__ == "__main__":
    main(*sys.argv[1:4])
    sys.stdout.flush()
    os._exit(0)  # threads of the libraries that still wait for the network
