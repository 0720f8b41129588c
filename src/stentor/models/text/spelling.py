"""Spelling: texts as CTC classes and back, with the tokenizer of a transformers CTC model."""

import json
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol

from stentor.errors import ConfigError
from stentor.models.text.control_tokens import text_ids
from stentor.text.letters import same_letter

Accents = Literal["keep", "strip"]
PAD, BOS, EOS, UNK, SPACE = "<pad>", "<s>", "</s>", "<unk>", "|"
SPECIALS = (PAD, BOS, EOS, UNK, SPACE)


class Spelling(Protocol):
    """The part of a tokenizer that a processor needs."""

    def encode(self, text: str) -> tuple[list[int], str]:
        """Classes of a text, and the letters and digits in it that cannot be written (empty: all can)."""

    def decode(self, classes: Sequence[int]) -> str:
        """Text of classes without blanks, repeats already merged."""


def spelling(tokenizer: Any, accents: Accents | None = None) -> Spelling:
    """By characters with a Wav2Vec2CTCTokenizer, else by pieces. Without `accents`, characters are stripped of accents
    that the alphabet lacks, and pieces are not."""
    from transformers import Wav2Vec2CTCTokenizer

    if isinstance(tokenizer, Wav2Vec2CTCTokenizer):
        return Characters(tokenizer, accents != "keep")
    return Pieces(tokenizer, accents == "strip")


def written(spelling: Spelling, letter: str) -> str:
    """See `Processor.written`."""
    classes, missing = spelling.encode(letter)
    return "" if missing else spelling.decode(classes).strip()


class Characters:
    """One class per character, as wav2vec 2.0 and its kin write."""

    def __init__(self, tokenizer: Any, strip: bool = True):
        self.strip = strip
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        delimiter: str = tokenizer.word_delimiter_token
        special = {tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, delimiter}
        lower = tokenizer.do_lower_case  # it writes capitals and reads them back small
        self.classes = {t: i for t, i in vocabulary.items() if len(t) == 1 and t not in special}
        self.texts = {i: t.lower() if lower else t for t, i in vocabulary.items() if t not in special}
        if delimiter in vocabulary:
            self.classes[" "] = vocabulary[delimiter]
            self.texts[vocabulary[delimiter]] = " "

    def encode(self, text: str) -> tuple[list[int], str]:
        """A character that is missing is tried in the other case and, with `strip`, without accents. Dashes and slashes
        that cannot be written separate words, other signs are left out."""
        classes: list[int] = []
        missing = ""
        space = self.classes.get(" ")
        for c in " ".join(unicodedata.normalize("NFC", text).split()):
            c = "'" if c in "’ʼ" and c not in self.classes else c
            if c in self.classes:
                classes.append(self.classes[c])
                continue
            forms = (c.lower(), c.upper(), c.casefold())
            cases = [form for form in forms if self.strip or same_letter(c, form)]
            bare = plain(c) if self.strip else ""
            for variant in (*cases, bare, bare.lower(), bare.upper()):
                if variant and all(v in self.classes for v in variant):
                    classes += [self.classes[v] for v in variant]
                    break
            else:
                if unicodedata.category(c)[0] in "LMN" and not (self.strip and _is_accent(c)):
                    missing += c
                elif space is not None and (unicodedata.category(c) == "Pd" or c == "/"):
                    classes.append(space)
        if space is not None:  # none at the ends, one between words
            words = [list(run) for other, run in groupby(classes, lambda c: c != space) if other]
            classes = [c for k, word in enumerate(words) for c in ([space] if k else []) + word]
        return classes, missing

    def decode(self, classes: Sequence[int]) -> str:
        return "".join(self.texts.get(c, "") for c in classes)


class Pieces:
    """Subwords, as Parakeet writes."""

    def __init__(self, tokenizer: Any, strip: bool = False):
        self.tokenizer, self.strip = tokenizer, strip

    def encode(self, text: str) -> tuple[list[int], str]:
        """Tried as it is, in small letters, without punctuation and, with `strip`, without accents."""
        text = unicodedata.normalize("NFC", text)
        small = text.lower()
        letters = (c if unicodedata.category(c)[0] in "LMN" or c in " '" else " " for c in small)
        bare = " ".join("".join(letters).split())
        classes: list[int] = []
        for variant in (text, small, bare, *((plain(text), plain(small), plain(bare)) if self.strip else ())):
            classes = text_ids(self.tokenizer, variant)
            if self.tokenizer.unk_token_id not in classes:
                return classes, ""
        unknown = [c for c in bare if c != " " and self.tokenizer.unk_token_id in self._ids(c)]
        return classes, "".join(unknown) or bare

    def _ids(self, text: str) -> list[int]:
        return text_ids(self.tokenizer, text)

    def decode(self, classes: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(classes), skip_special_tokens=True, group_tokens=False))


@lru_cache(maxsize=100_000)
def plain(text: str) -> str:
    """Without accents. Marks that make a letter of another, as in Kana and Indic scripts, stay."""
    return unicodedata.normalize("NFC", "".join(c for c in unicodedata.normalize("NFKD", text) if not _is_accent(c)))


def _is_accent(character: str) -> bool:
    return unicodedata.combining(character) >= 200  # above, below or attached, in scripts with accents


def from_transcripts(texts: Iterable[str], accents: Accents | None = None) -> Any:
    """A Wav2Vec2CTCTokenizer with the characters of the texts in order of code point, or with accents stripped;
    `<pad>`, class 0, is blank.

    Raises ConfigError when there are none.
    """
    texts = map(plain, texts) if accents == "strip" else texts
    characters = {c for text in texts for c in unicodedata.normalize("NFC", text)}
    letters = sorted(c for c in characters if not c.isspace() and c != SPACE)
    if not letters:
        raise ConfigError("model.alphabet: the training transcripts are empty: no alphabet can be made from them.")
    return from_vocabulary({token: i for i, token in enumerate([*SPECIALS, *letters])})


def from_vocabulary(vocabulary: Mapping[str, int]) -> Any:
    """A Wav2Vec2CTCTokenizer with these tokens and classes."""
    from transformers import Wav2Vec2CTCTokenizer

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.json"
        file.write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        return Wav2Vec2CTCTokenizer(
            str(file), pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNK, word_delimiter_token=SPACE
        )
