"""Shell scripts as the commands in them, and the options of a command as values with their places."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from stentor.config.document import Mistake, Mistakes, Node, Place, scalar

_SEPARATORS = "|&;"
_ENDS = re.compile(r"[0-9]*[<>].*", re.DOTALL)
"""A redirection, which ends the words of a command."""
_SECRET = re.compile(r"token|secret|password|key|hf_\w+", re.IGNORECASE)
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Word(NamedTuple):
    """A word of a command, after quotes and variables."""

    text: str
    place: Place


class Command(NamedTuple):
    """The call of a Python script."""

    script: str
    """Name of its file."""
    launcher: list[Word]
    """Words before it: variables, and a launcher with its options."""
    words: list[Word]
    """Words after it."""
    place: Place


class Vocabulary(NamedTuple):
    """Options of a program, by names with hyphens."""

    known: frozenset[str]
    switches: frozenset[str] = frozenset()
    """Options without a value, or with true or false; `--no-NAME` is false."""
    optional: frozenset[str] = frozenset()
    """Options that may have a value; without one they are switches."""
    lists: frozenset[str] = frozenset()
    """Options that take several values."""
    same: Mapping[str, str] = MappingProxyType({})
    """Other spellings."""


class Unknown(NamedTuple):
    """An option that is not understood, or a word that belongs to none."""

    name: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The option as it was written, without secrets."""
        values = shlex.join(self.values)
        shown = values if not values or not _SECRET.search(f"{self.name} {values}") else "(not shown)"
        return f"{self.name} {shown}".rstrip()

    @property
    def bare(self) -> str:
        """Its name in the spelling of a vocabulary."""
        return self.name.lstrip("-").replace("_", "-").lower()


class Options(NamedTuple):
    """Options of a command: what is known, what is not, and what is wrong with them."""

    values: dict[str, Node]
    others: list[Unknown]
    mistakes: list[Mistake]


def script_calls(text: str, place: Place, scripts: Iterable[str]) -> Iterator[Command]:
    """Yield the calls of the `scripts` in a shell script, with the variables that it sets filled in."""
    names = {script: script for script in scripts}
    modules = {script.removesuffix(".py"): script for script in names}
    for words in _commands(text, place, names):
        before = ""
        for i, word in enumerate(words):
            ends = word.text.endswith(")")
            name = PurePosixPath(word.text.rstrip(")").replace("\\", "/")).name
            script = modules.get(name.rpartition(".")[2]) if before == "-m" else names.get(name)
            if script is not None:
                yield Command(script, words[:i], [] if ends else _in_subshell(words[i + 1 :]), word.place)
                break
            before = word.text


def _in_subshell(words: Sequence[Word]) -> list[Word]:
    """The words up to a closing bracket that none of them opens: the end of a subshell, `(...)` or `$(...)`."""
    depth = 0
    for i, word in enumerate(words):
        for at, letter in enumerate(word.text):
            depth += (letter == "(") - (letter == ")")
            if depth < 0:
                return [*words[:i], *([word._replace(text=word.text[:at])] if at else [])]
    return [*words]


def read_options(words: Sequence[Word], vocabulary: Vocabulary) -> Options:
    """Read the options among the words of a command; a word that belongs to no option is one of `others`."""
    result = Options({}, [], [])
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.text.partition("=")
        if not re.match(r"--?[A-Za-z]", name):
            result.others.append(Unknown(word.text))
            continue
        bare = Unknown(name).bare
        option = vocabulary.same.get(bare, bare)
        off = option not in vocabulary.known and option.removeprefix("no-") in vocabulary.known
        option = option.removeprefix("no-") if off else option
        known, switch = option in vocabulary.known, option in vocabulary.switches
        values = [value] if equals else []
        while not equals and remaining and not re.match(r"--[A-Za-z]", remaining[0].text):
            if (values and known and option not in vocabulary.lists) or (
                switch and remaining[0].text.lower() not in _TRUTHS
            ):
                break  # one value, and none behind a switch
            values.append(remaining.pop(0).text)
        if not known:
            result.others.append(Unknown(name, tuple(values)))
        elif not values and (switch or option in vocabulary.optional):
            result.values[option] = Node(not off, word.place)
        elif switch and values[0].lower() in _TRUTHS:
            result.values[option] = Node(_TRUTHS[values[0].lower()] != off, word.place)
        elif not values:
            result.mistakes.append(Mistake(word.place, f"{name} has no value"))
        elif bare.endswith("token"):
            result.values[option] = Node("(not shown)", word.place)
        elif unset := next((v for v in values if "$" in v), None):
            result.mistakes.append(Mistake(word.place, f"{name} takes its value from {unset}, which is not set there"))
        elif option in vocabulary.lists:
            result.values[option] = Node([Node(v, word.place) for v in values], word.place)
        else:
            result.values[option] = Node(scalar(values[0]), word.place)
    return result


def _commands(text: str, place: Place, scripts: Iterable[str]) -> Iterator[list[Word]]:
    """Yield the commands of a shell script as lists of words; continued lines are one command. Raises `Mistakes` for
    quotation marks without a counterpart beside one of the `scripts` or a variable, not for those in other texts."""
    variables: dict[str, str] = {}
    words: list[Word] = []
    broken: Place | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines, place.line):
        line_place = Place(place.rank, number, place.source)
        goes_on = re.search(r"(?:(?<!\\)\\|(?:^|(?<=\s))[\^`])\s*$", line)
        line = line[: goes_on.start()] if goes_on else line
        parts = shlex.shlex(line, posix=True, punctuation_chars=_SEPARATORS)
        parts.whitespace_split = True
        try:
            words += [Word(part, line_place) for part in parts]
        except ValueError:
            words += [Word(part, line_place) for part in line.split()]
            broken = broken or line_place
        if goes_on and number - place.line + 1 < len(lines):
            continue
        if broken and any(script in word.text for word in words for script in (*scripts, "=")):
            raise Mistakes([Mistake(broken, "a quotation mark has no counterpart on its line")])
        for command in filter(None, _split(words)):
            command = [Word(_filled(word.text, variables), word.place) for word in command]
            command[0] = Word(command[0].text.lstrip("("), command[0].place)
            for word in command if all("=" in w.text for w in command) or command[0].text == "export" else ():
                name, equals, value = word.text.partition("=")
                if equals and name.isidentifier():
                    variables[name] = value
            yield command
        words, broken = [], None


def _split(words: list[Word]) -> Iterator[list[Word]]:
    """Yield the commands on a line, some of them empty, without redirections."""
    for separates, command in groupby(words, lambda word: word.text != "" and not word.text.strip(_SEPARATORS)):
        if not separates:
            yield [*takewhile(lambda word: not _ENDS.fullmatch(word.text), command)]


def _filled(word: str, variables: dict[str, str]) -> str:
    """A word with the variables that the script sets; `${NAME:-default}` is the default where it sets none."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return re.sub(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))", value, word)
