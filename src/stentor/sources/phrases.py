"""Sentences for the built-in voice to speak: digit strings and short commands for a home assistant."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

_SLOTS = {
    "switch": ["turn on", "turn off", "switch on", "switch off"],
    "room": ["kitchen", "bedroom", "living room", "bathroom", "hall", "office", "garage", "garden"],
    "device": ["light", "lamp", "fan", "heater", "radio", "television", "camera"],
    "move": ["open", "close", "lock", "unlock"],
    "door": ["door", "window", "gate"],
    "amount": [
        "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "fifteen", "twenty",
        "thirty", "forty", "fifty", "sixty",
    ],
    "unit": ["seconds", "minutes", "hours"],
    "hour": [
        "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    ],
    "past": ["", "fifteen", "thirty", "forty five"],
    "time": ["in the morning", "in the afternoon", "at night"],
    "degree": [f"{tens}{ones}" for tens in ("", "twenty ") for ones in DIGITS[1:]] + ["ten", "twenty", "thirty"],
    "day": ["today", "tomorrow", "on monday", "on tuesday", "on wednesday", "on thursday", "on friday", "on sunday"],
    "city": ["london", "paris", "berlin", "madrid", "rome", "vienna", "oslo", "dublin", "lisbon", "athens"],
    "genre": ["jazz", "rock", "classical music", "some folk songs", "the news", "my favourite songs", "a story"],
    "name": ["anna", "ben", "clara", "david", "emma", "frank", "maria", "peter", "my mother", "the office"],
    "reach": ["call", "send a message to", "read the last message from"],
    "errand": ["water the plants", "feed the cat", "buy some bread", "pay the rent", "book a table", "take a walk"],
    "item": ["milk", "bread", "apples", "coffee", "rice", "cheese", "eggs", "soap", "paper towels", "tomatoes"],
    "list": ["shopping list", "holiday list"],
    "loud": ["up", "down"],
    "how": ["", "a little", "a lot"],
    "lamp": ["light", "lamp"],
}  # fmt: skip

_COMMANDS = [
    "{switch} the {room} {device}",
    "{move} the {room} {door}",
    "set a timer for {amount} {unit}",
    "wake me up at {hour} {past} {time}",
    "set the {room} to {degree} degrees",
    "what is the weather in {city} {day}",
    "play {genre} in the {room}",
    "{reach} {name}",
    "remind me to {errand} {day}",
    "add {item} to the {list}",
    "turn the {room} {device} {loud} {how}",
    "dim the {room} {lamp} to {amount} percent",
    "set an alarm for {hour} {past} {day}",
    "remind me to {errand} at {hour} {past}",
    "tell {name} that i will be {amount} minutes late",
    "how far is it from {city} to {city}",
    "book a table for {amount} people {day}",
    "move my meeting {day} to {hour} {past}",
]


def digit_string(rng: random.Random, low: int, high: int) -> str:
    """`low` to `high` digits, spelled."""
    return " ".join(rng.choices(DIGITS, k=rng.randint(low, high)))


def command(rng: random.Random) -> str:
    """One command: a pattern drawn evenly, then each of its slots."""
    pattern = rng.choice(_COMMANDS)
    return _fill(pattern, [rng.choice(_SLOTS[slot]) for slot in _slots(pattern)])


def commands() -> Iterator[str]:
    """Every sentence of the grammar."""
    for pattern in _COMMANDS:
        for values in product(*(_SLOTS[slot] for slot in _slots(pattern))):
            yield _fill(pattern, list(values))


def _slots(pattern: str) -> list[str]:
    return [part.split("}")[0] for part in pattern.split("{")[1:]]


def _fill(pattern: str, values: list[str]) -> str:
    for slot, value in zip(_slots(pattern), values):
        pattern = pattern.replace(f"{{{slot}}}", value, 1)
    return " ".join(pattern.split())
