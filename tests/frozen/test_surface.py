"""What a user writes stays: options of verbs and keys of run files keep their names and defaults; more may come."""

import json
from pathlib import Path

import frozen_answers

FOLDER = Path(__file__).parent

REMOVED = {"train.deepspeed"}
"""Keys that commit 1f502d86 had and that are refused now, each with what takes its place in the message."""

CHANGED = {f"task[{task}].normalizer": "multilingual" for task in ("transcribe", "words", "who_said_what", "commands")}
"""Keys whose default hid errors in that commit, with the new one."""


def test_every_option_stays():
    before, now = json.loads((FOLDER / "options.json").read_text()), frozen_answers.options()
    assert not before.keys() - now.keys(), "verbs that are gone"
    for verb, options in before.items():
        for name, option in options.items():
            assert name in now[verb], f"{verb}: {name} is gone"
            for fact in ("flags", "default", "min", "max", "required"):
                assert now[verb][name][fact] == option[fact], f"{verb}: {fact} of {name}"
            kinds = {o["type"].replace("Path", "str") for o in (now[verb][name], option)}  # a path is read as text
            assert len(kinds) == 1, f"{verb}: type of {name}"


def test_arguments_keep_their_order():
    before, now = json.loads((FOLDER / "options.json").read_text()), frozen_answers.options()

    def arguments(options):
        return [name for name, option in options.items() if not option["flags"][0].startswith("-")]

    for verb, options in before.items():
        assert arguments(now[verb])[: len(arguments(options))] == arguments(options), verb


def test_every_key_of_a_run_file_keeps_its_default():
    now = frozen_answers.keys()
    for group in json.loads((FOLDER / "keys.json").read_text()):
        for section in group["sections"]:
            for name, default in group["keys"].items():
                key = f"{section}.{name}".lstrip(".")
                if key not in REMOVED:
                    assert now.get(section, {}).get(name) == CHANGED.get(key, default), key
