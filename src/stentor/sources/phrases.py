"""Texts for the built-in voice to speak: digit strings, short commands for a home assistant, sentences as in talk."""

import random
from collections.abc import Iterator
from itertools import product


def _table(text: str) -> dict[str, list[str]]:
    """The choices of each slot, written `slot: choice | choice`; an indented line continues the one before it."""
    lines = text.strip().replace("\n    ", " ").splitlines()
    slots = dict(line.split(": ", 1) for line in lines)
    return {slot: [choice.strip() for choice in choices.split("|")] for slot, choices in slots.items()}


DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

_SLOTS = _table("""
switch: turn on | turn off | switch on | switch off
room: kitchen | bedroom | living room | bathroom | hall | office | garage | garden
device: light | lamp | fan | heater | radio | television | camera
move: open | close | lock | unlock
door: door | window | gate
amount: two | three | four | five | six | seven | eight | nine | ten | twelve | fifteen | twenty | thirty | forty |
    fifty | sixty
unit: seconds | minutes | hours
hour: one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve
past:  | fifteen | thirty | forty five
time: in the morning | in the afternoon | at night
day: today | tomorrow | on monday | on tuesday | on wednesday | on thursday | on friday | on sunday
city: london | paris | berlin | madrid | rome | vienna | oslo | dublin | lisbon | athens
genre: jazz | rock | classical music | some folk songs | the news | my favourite songs | a story
name: anna | ben | clara | david | emma | frank | maria | peter | my mother | the office
reach: call | send a message to | read the last message from
errand: water the plants | feed the cat | buy some bread | pay the rent | book a table | take a walk
item: milk | bread | apples | coffee | rice | cheese | eggs | soap | paper towels | tomatoes
list: shopping list | holiday list
loud: up | down
how:  | a little | a lot
lamp: light | lamp
""")
_SLOTS["degree"] = [f"{tens}{ones}" for tens in ("", "twenty ") for ones in DIGITS[1:]] + ["ten", "twenty", "thirty"]

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

_TALK = _table("""
who: i | we | they | you | my brother | the neighbours | your sister | everybody | the old man | he | the teacher |
    some people | the children | no one here | our doctor | the driver | his cousin | she
did: wanted to see | talked about | looked for | never liked | already knew | forgot | asked about | found |
    often thought of | left behind | brought along | could not open | waited for | sold | painted | dreamed about |
    paid for | had to repair | wrote down
what: the blue car | a better answer | the last train | that long letter | the garden gate | another plan |
    a small dog | the whole story | two tickets | the wrong address | an empty bottle | the river bank |
    your picture | a new kitchen table | the white horse | some warm bread | every question | the music
where: at the station | in the village | behind the house | near the lake | on the way home | at school |
    across the street | under the bridge | in front of the shop | up on the hill | in the other room
when: last summer | every morning | after dinner | a week ago | before the rain | on friday evening |
    when it was dark | as far as i know | for the first time | in the end | only yesterday
start: well | you know | i think | to be honest | so | oh yes | no | perhaps | of course | it seems that |
    in my opinion | believe me | the thing is | honestly
join: and | but | because | so | although | and then | while
""")

_TALK_PATTERNS = [
    "{who} {did} {what}",
    "{who} {did} {what} {where}",
    "{who} {did} {what} {when}",
    "{start} {who} {did} {what}",
    "{start} {who} {did} {what} {where} {when}",
    "{when} {who} {did} {what} {where}",
    "{who} {did} {what} {join} {who} {did} {what}",
    "{start} {who} {did} {what} {join} {who} {did} {what}",
    "{who} {did} {what} {where} {join} {who} {did} {what}",
    "did you hear that {who} {did} {what} {when}",
    "what if {who} {did} {what} {where}",
]


def digit_string(rng: random.Random, low: int, high: int) -> str:
    """`low` to `high` digits, spelled."""
    return " ".join(rng.choices(DIGITS, k=rng.randint(low, high)))


def command(rng: random.Random) -> str:
    """One command: a pattern drawn evenly, then each of its slots."""
    pattern = rng.choice(_COMMANDS)
    return _fill(pattern, [rng.choice(_SLOTS[slot]) for slot in _slots(pattern)])


def sentence(rng: random.Random, low: int, high: int) -> str:
    """A sentence of `low` to `high` words as in talk, evenly by length as far as the grammar goes (4 to 20 words)."""
    length = rng.randint(low, high)
    best = ""
    for _ in range(12):
        pattern = rng.choice(_TALK_PATTERNS)
        text = _fill(pattern, [rng.choice(_TALK[slot]) for slot in _slots(pattern)])
        if not best or abs(len(text.split()) - length) < abs(len(best.split()) - length):
            best = text
    return " ".join(best.split()[:high])


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
