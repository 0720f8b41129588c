"""Written texts for aligners: without sounds in brackets, with numbers in words if asked; and the times of the words as
they are written."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from statistics import fmean
from typing import Any, NamedTuple

from stentor.data.word_units import units
from stentor.inference.align.base import Aligned, Aligner, Clip, Word
from stentor.metrics.wer import matches
from stentor.text import verbalize
from stentor.text.normalize import bare

SOUNDS = re.compile(r"\[[^][]*\]|<[^<>]*>|\([^\s()]+(?:\s+[^\s()]+){0,2}\)|\*[^\s*](?:[^*]*[^\s*])?\*|♪[^♪]*♪")
"""Sounds in brackets that are not speech; in parentheses at most three words."""


class _Spoken(NamedTuple):
    text: str
    words: Sequence[dict[str, Any]]  # as they are written
    owners: Sequence[int]  # the written word of each spoken one
    ignored: list[str]


def align_written(
    aligner: Aligner, clips: Sequence[Clip], normalize: bool = False, brackets: bool = False, transcribe: bool = False
) -> list[Aligned]:
    """Align clips with their written texts: with `normalize` numbers and signs are read aloud, with `brackets`
    also sounds in brackets are aligned. Raises ConfigError for a language whose numbers cannot be read."""
    spoken = [_spoken(clip, normalize, brackets) for clip in clips]
    found = aligner.align([replace(clip, text=s.text) for clip, s in zip(clips, spoken)], transcribe)
    return [replace(a, words=_as_written(a.words, s), ignored=s.ignored) for a, s in zip(found, spoken, strict=True)]


def _spoken(clip: Clip, normalize: bool, brackets: bool) -> _Spoken:
    def words_of(text: str) -> list[dict[str, Any]]:
        return units(text, clip.language)

    ignored = [] if brackets else [sound for sound in SOUNDS.findall(clip.text) if words_of(sound)]
    text = clip.text if brackets else SOUNDS.sub(lambda sound: " " * len(sound[0]), clip.text)
    read = verbalize.normalize(text, clip.language) if normalize else text
    words, said = words_of(text), words_of(read)
    owners: list[int] = []
    pairs = matches(*([bare(w["word"]) for w in side] for side in (words, said)))
    for (w0, s0), (w1, s1) in pairwise([(-1, -1), *pairs, (len(words), len(said))]):
        # Words that differ are shared out as each reads alone; where none is written, they belong to the one before.
        alone = ((i, verbalize.normalize(words[i]["word"], clip.language)) for i in range(w0 + 1, w1))
        each = [i for i, text in alone for _ in words_of(text)] or [max(w0, 0)]
        owners += [each[k * len(each) // (s1 - s0 - 1)] for k in range(s1 - s0 - 1)] + [w1]
    return _Spoken(read, words, owners[:-1], ignored)


def _as_written(timed: Sequence[Word], spoken: _Spoken) -> list[Word]:
    """The written words. Those that the model cannot write share what their neighbours leave, by their characters."""
    if not timed or len(timed) != len(spoken.owners):
        return []
    own = {i: [w for _, w in group] for i, group in groupby(zip(spoken.owners, timed), lambda pair: pair[0])}
    words: list[Word] = []
    for i, written in enumerate(spoken.words):
        start = words[-1].end if words else timed[0].start
        parts = own.get(i) or [Word("", start, start, 0.0)]  # a word that is read as nothing
        unwritten, sure = all(w.unwritten for w in parts), fmean(w.confidence for w in parts)
        words.append(Word(written["word"], parts[0].start, parts[-1].end, sure, unwritten, written["span"][0]))
    for unwritten, group in groupby(range(len(words)), lambda i: words[i].unwritten):
        if unwritten:
            run = list(group)
            start = max([words[run[0]].start, *(w.end for w in words[run[0] - 1 : run[0]])])
            end = min([max(words[i].end for i in run), *(w.start for w in words[run[-1] + 1 : run[-1] + 2])])
            lengths = [0, *accumulate(len(words[i].word) for i in run)]
            for i, ends in zip(run, pairwise(lengths)):
                words[i].start, words[i].end = (start + max(0.0, end - start) * n / lengths[-1] for n in ends)
    return words
