"""Texts as tokens: a transcript or a hint of a user never becomes a control token, even where it has the name of one.

Ordinary texts have the tokens that transformers gives them. A text with the name of a control token, such as
`<|endoftext|>`, is encoded by a copy of the tokenizer that does not know that name.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

MARK, BROKEN = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode: before a control token of a template, and inside a name that is text."""
NAMED = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")
"""Names of control tokens, among tokens that were added to a vocabulary."""
BYTE = re.compile("<0x[0-9A-F]{2}>")


class _Control:
    """The control tokens of one tokenizer."""

    def __init__(self, tokenizer: Any):
        self.fast = _is_fast(tokenizer)
        self.tokenizer = tokenizer.backend_tokenizer if self.fast else tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self.names = {i: t.content for i, t in added if t.special or NAMED.fullmatch(t.content)}
        if self.fast and type(self.tokenizer.model).__name__ != "BPE":  # others find their control pieces in a text
            pieces = tokenizer.get_vocab().items()
            self.names |= {i: p for p, i in pieces if NAMED.fullmatch(p) and not BYTE.fullmatch(p)}
        self.unknown = (tokenizer.unk_token_id, tokenizer.unk_token)
        names = sorted(filter(None, self.names.values()), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def within(self, ids: Sequence[int], text: str) -> bool:
        """Whether control tokens are among the tokens of a text, unless they stand for unknown letters."""
        unknown, name = self.unknown
        return any(i in self.names and (i != unknown or name in text) for i in ids)

    @cached_property
    def copy(self) -> tuple[Any, dict[int, int]]:
        """The tokenizer with `MARK` before the names of its control tokens, and its ids that are others here."""
        from tokenizers import Tokenizer

        facts = json.loads(self.tokenizer.to_str()) | {"truncation": None, "padding": None}
        model, names = facts["model"], set(self.names.values())
        kept = {a + b for a, b in model.get("merges") or ()}  # what merges make must be in the vocabulary

        def marked(token: str) -> str:
            return MARK + token if token in names and token not in kept else token

        vocabulary = model["vocab"]
        model["vocab"] = (
            [[marked(token), score] for token, score in vocabulary]
            if isinstance(vocabulary, list)
            else {marked(token): i for token, i in vocabulary.items()}
        )
        if model.get("unk_token"):
            model["unk_token"] = marked(model["unk_token"])
        for token in facts["added_tokens"]:
            token["content"] = MARK * (token["content"] in names) + token["content"]
        copy: Any = Tokenizer.from_str(json.dumps(facts))
        return copy, {copy.token_to_id(token["content"]): token["id"] for token in facts["added_tokens"]}

    def encode(self, string: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and offsets of a string whose control tokens have a `MARK`."""
        copy, ids = self.copy
        encoding = copy.encode(string, add_special_tokens=False)
        return [ids.get(i, i) for i in encoding.ids], encoding.offsets


_known: WeakKeyDictionary[Any, _Control] = WeakKeyDictionary()


def _control(tokenizer: Any) -> _Control:
    if (known := _known.get(tokenizer)) is None:
        known = _known[tokenizer] = _Control(tokenizer)
    return known


def _is_fast(tokenizer: Any) -> bool:
    from transformers import PreTrainedTokenizerFast

    return isinstance(tokenizer, PreTrainedTokenizerFast)


def add_control_tokens(tokenizer: Any, tokens: list[str]) -> int:
    """Add control tokens to a tokenizer; returns how many are new."""
    _known.pop(tokenizer, None)
    return int(tokenizer.add_tokens(tokens, special_tokens=True))


def template_ids(tokenizer: Any, string: str) -> list[int]:
    """The tokens of a prompt with control tokens, in which texts of users are as `as_text` returns them."""
    if not string:
        return []
    if BROKEN in string:
        control = _control(tokenizer)
        if control.fast:
            return control.encode(control.pattern.sub(rf"{MARK}\g<0>", string).replace(BROKEN, ""))[0]
        return [i for part in string.split(BROKEN) for i in template_ids(tokenizer, part)]
    if _is_fast(tokenizer):  # what transformers does around it takes as long again, and a plan comes past every text
        return list(tokenizer.backend_tokenizer.encode(string, add_special_tokens=False).ids)
    return list(tokenizer(string, add_special_tokens=False)["input_ids"])


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, none of them a control token."""
    ids = template_ids(tokenizer, text.replace(BROKEN, ""))
    control = _control(tokenizer)
    if not control.within(ids, text):
        return ids
    text = text.replace(BROKEN, "").replace(MARK, "")
    if control.fast:
        return control.encode(text)[0]
    return list(tokenizer.convert_tokens_to_ids(tokenizer._tokenize(text)))


def text_offsets(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """The characters [start, end) of a text that each of its tokens stands for; for fast tokenizers."""
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    control = _control(tokenizer)
    return control.encode(text)[1] if control.within(encoding.ids, text) else list(encoding.offsets)


def as_text(tokenizer: Any, text: str) -> str:
    """A text of a user for a template: the names of control tokens in it do not become tokens."""
    text = text.replace(MARK, "").replace(BROKEN, "")
    return _control(tokenizer).pattern.sub(lambda name: f"{name[0][0]}{BROKEN}{name[0][1:]}", text)


def control_names(tokenizer: Any, text: str) -> list[str]:
    """Names of the tokenizer's control tokens in a text; None has none."""
    return [] if tokenizer is None else _control(tokenizer).pattern.findall(text)
