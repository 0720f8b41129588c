"""Options of verbs: declared once, and refused by name where nothing uses them."""

import dataclasses

import pytest

from stentor.cli import build, main
from stentor.commands.recording_options import TranscribeOptions
from stentor.config.prepare.base import Preparation
from stentor.errors import ConfigError
from stentor.inference.declarations import REQUIRED, VERBS, command_line, declarations, default_of, flag, refuse_missing
from stentor.inference.options import DecodingOptions, SpeakerOptions, SpeechOptions

build()
OPTIONS = {f"{verb.group} {verb.name}".strip(): verb.options for verb in VERBS}
VALUES = {bool: True, int | None: 3, float | None: 0.5, str | None: "x"}


def filled(options, **values):
    needed = {f.name: "x" for f, _ in declarations(options) if default_of(f) is REQUIRED}
    return options(**needed | values)


@pytest.mark.parametrize("name", [n for n, o in OPTIONS.items() if any(d.needs for _, d in declarations(o))])
def test_an_option_without_the_one_that_it_needs(name):
    for field, declared in declarations(OPTIONS[name]):
        if declared.needs is not None:
            value = VALUES.get(field.type, "x")
            with pytest.raises(ConfigError, match=f"^{flag(field)} requires --{declared.needs.replace('_', '-')}\\.$"):
                refuse_missing(filled(OPTIONS[name], **{field.name: value}))
            refuse_missing(filled(OPTIONS[name], **{field.name: value, declared.needs: "auto"}))


def test_each_option_is_declared_in_one_class_unless_its_help_differs():
    """A class that declares an option again says something else of it."""
    for options in OPTIONS.values():
        for cls in options.__mro__[1:-1]:
            inherited = {field.name: (field, declared) for field, declared in declarations(cls)}
            for field, declared in declarations(options):
                if field.name in inherited and field.name in vars(options).get("__annotations__", {}):
                    other, its = inherited[field.name]
                    assert (declared, default_of(field)) != (its, default_of(other)), f"{options.__name__}.{field.name}"


def test_a_wrong_name_is_an_error(tmp_path):
    for options in (DecodingOptions, SpeechOptions, SpeakerOptions):
        with pytest.raises(TypeError, match="beems"):
            options(beems=3)
    with pytest.raises(TypeError, match="beems"):
        dataclasses.replace(filled(TranscribeOptions), beems=3)


def test_a_command_line_makes_equal_options(monkeypatch):
    seen = []
    verb = next(verb for verb in VERBS if verb.name == "evaluate")
    monkeypatch.setattr(verb.options, "__call__", lambda self: seen.append(self))
    options = verb.options(model="m", data="d", judge=["a", "b"], denoise=False, tune=True, processes=2)
    assert main(["evaluate", *command_line(options)]) == 0 and seen == [options]


def test_help_groups_the_options_of_a_task(capsys):
    assert main(["evaluate", "--help"]) == 0
    _, speech = capsys.readouterr().out.split("Speech synthesis:")
    assert "--recognizer" in speech and "--board" not in speech


@pytest.mark.parametrize("kind", sorted(Preparation.choices()))
def test_keys_of_a_step_are_options_of_its_verb(kind):
    step = Preparation.choices()[kind]
    keys = {step.option_names.get(key, key) for key in step.model_fields} - {"type"}
    assert keys <= {field.name for field in dataclasses.fields(OPTIONS[f"prepare {kind}"])}
