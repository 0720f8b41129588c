"""Tokenizers and alphabets made from training transcripts, and what a given tokenizer uses for padding."""

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import Any, Literal

from pydantic import Field

from stentor.data.batch import Example, num_samples
from stentor.errors import ConfigError
from stentor.section import Section

PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"


def characters(texts: Iterable[str]) -> Any:
    """A PreTrainedTokenizerFast with one token per character of the texts, in order of code point, after 4 specials."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, UNK, *alphabet(texts)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _fast(tokenizer)


def bpe(texts: Iterable[str], size: int) -> Any:
    """A byte-level BPE PreTrainedTokenizerFast with at most `size` tokens, trained on the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, BOS, EOS, UNK],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _fast(tokenizer)


def _fast(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    )


def alphabet(texts: Iterable[str]) -> str:
    """All characters of the texts, in order of code point. Raises ConfigError when there are none."""
    letters = {letter for text in texts for letter in text}
    if not letters:
        raise ConfigError("model: the training transcripts are empty: no characters or tokens can be made from them.")
    return "".join(sorted(letters))


def padding_id(tokenizer: Any) -> int:
    """An id to pad with that is not the end token, so that the end token is always learnt.

    The tokenizer's own padding token where it differs from its end token (Qwen2's base models have one token for
    both), else an unused special token, else id 0: padding is never attended to nor supervised, so no row is added to
    the embeddings for it.
    """
    eos = tokenizer.eos_token_id
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != eos:
        return int(tokenizer.pad_token_id)
    special = {
        token.content: i
        for i, token in sorted(tokenizer.added_tokens_decoder.items())
        if token.special and i not in (eos, tokenizer.bos_token_id)
    }
    named = [i for token, i in special.items() if "pad" in token.lower()]
    return (named or list(special.values()) or [0 if eos != 0 else 1])[0]


def words_of_texts(texts: Iterable[str]) -> list[str]:
    """All words of the texts, in order of code point. Raises ConfigError when there are none."""
    words = {word for text in texts for word in text.split()}
    if not words:
        raise ConfigError("model: the training transcripts are empty: no words can be taken from them.")
    return sorted(words)


class CTCAlphabet:
    """Characters (a string) or words (a list) with their CTC classes: 0 is blank, the i-th unit is i + 1."""

    def __init__(self, units: str | list[str]):
        self.units = units
        self.by_words = not isinstance(units, str)
        self._ids = {unit: i + 1 for i, unit in enumerate(units)}

    def __len__(self) -> int:
        """Number of classes, blank included."""
        return len(self.units) + 1

    def encode(self, text: str) -> list[int]:
        """Classes of the units that the alphabet has; others are left out."""
        return [self._ids[unit] for unit in (text.split() if self.by_words else text) if unit in self._ids]

    def decode(self, classes: Iterable[int]) -> str:
        """Text of a path of classes per frame: repeats merged, then blanks removed (Graves et al. 2006)."""
        return self.spell(c for c, _ in groupby(classes) if c)

    def spell(self, classes: Iterable[int]) -> str:
        """Text of classes without repeats and blanks."""
        return (" " if self.by_words else "").join(self.units[c - 1] for c in classes)


def ctc_frames(classes: list[int]) -> int:
    """Fewest frames that can spell the classes: one each, and a blank between equal neighbours."""
    return len(classes) + sum(a == b for a, b in pairwise(classes))


def too_many_classes(
    example: Example, classes: list[int], frames: int, rate: float, fix: str = "leave the record out"
) -> tuple[str, str] | None:
    """`Processor.drop_reason` of CTC for the classes of a text and the frames of its clip at `rate` Hz."""
    needed = ctc_frames(classes)
    if needed <= frames:
        return None
    return "text_too_long", (
        f"{example.id}: its text of {len(classes)} signs needs {needed} frames, and {num_samples(example) / rate:.2f} "
        f"s of audio give {frames} (CTC writes at most a sign a frame): do text and audio belong together? If so, "
        f"{fix}."
    )


class TokenizerSection(Section):
    """A tokenizer built from the training transcripts."""

    type: Literal["characters", "bpe"] = "characters"
    """`characters`: one token for each character. `bpe`: byte-level subwords."""
    size: int = Field(500, ge=260)
    """Vocabulary size of `bpe`, special tokens included."""


class CTCHeadSection(Section):
    """Auxiliary CTC head on the encoder."""

    units: Literal["characters"] = "characters"
    """Units that the head writes: the characters of the training transcripts."""


def made_tokenizer(section: Any, lines: Iterable[str]) -> Any:
    """The tokenizer of a section with a `type` and a `size`, as `TokenizerSection` has them, made from texts."""
    return characters(lines) if section.type == "characters" else bpe(lines, section.size)
