"""Sections, choices and messages on a small schema of their own."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field, model_validator

from stentor.config.document import Mistakes
from stentor.config.load import load, resolved
from stentor.section import Choice, ConfigConflict, Section


class Shape(Choice):
    default_type: ClassVar[str | None] = "circle"
    _known: int = 0


Shape._searched = True  # its kinds are below, not in the files beside this one


class Circle(Shape):
    type: Literal["circle"] = "circle"
    radius: float = Field(1.0, gt=0)


class Box(Shape):
    type: Literal["box"] = "box"
    sides: tuple[float, float]
    inside: Shape | None = None


class Window(Section):
    size: int | Literal["auto"] = "auto"
    choice: int | list[int] | None = None
    path: Path | None = None
    anything: Any = None


class Scene(Section):
    main: Shape = Circle()
    more: dict[str, Shape] = {}
    window: Window = Window()
    flag: bool = False
    width: int = 3

    @model_validator(mode="after")
    def _wide_enough(self) -> "Scene":
        if self.width < 2 and self.flag:
            raise ConfigConflict("window.size", "a narrow scene cannot have a flag")
        return self


def check(tmp_path, text, *overrides):
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        return load(path, overrides, Scene).config
    except Mistakes as error:
        return str(error).replace(f"{tmp_path}/", "")


def test_default_type_and_bare_string(tmp_path):
    config = check(tmp_path, "main: {radius: 2}\nmore: {a: circle, b: {type: box, sides: [1, 2], inside: circle}}\n")
    assert config.main == Circle(radius=2)
    assert config.more["b"] == Box(sides=(1, 2), inside=Circle())


def test_nested_choices_survive_the_round_trip(tmp_path):
    config = check(tmp_path, "more: {b: {type: box, sides: [1, 2], inside: {radius: 3}}}\n")
    assert check(tmp_path, resolved(config)) == config
    assert "radius: 3" in resolved(config)


def test_default_type_merges_with_its_own_name(tmp_path):
    (tmp_path / "base.yaml").write_text("main: {radius: 2}\n")
    assert check(tmp_path, "base: base.yaml\nmain: {type: circle}\n").main.radius == 2
    assert check(tmp_path, "base: base.yaml\nmain: {type: box, sides: [1, 1]}\n").main == Box(sides=(1, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window: {size: big}", "s.yaml:1: 'window.size' must be a whole number or 'auto', not 'big'"),
        ("window: {size: '3'}", "s.yaml:1: 'window.size' must be a whole number or 'auto', not '3'"),
        ("window: {size: true}", "s.yaml:1: 'window.size' must be a whole number or 'auto', not true"),
        (
            "window: {choice: x}",
            "s.yaml:1: 'window.choice' must be a whole number, a list of whole numbers or null, not 'x'",
        ),
        ("window: {choice: [1, x]}", "s.yaml:1: 'window.choice.1' must be a whole number, not 'x'"),
        ("window: {path: 3}", "s.yaml:1: 'window.path' must be a path or null, not 3"),
        ("flag: 0", "s.yaml:1: 'flag' must be true or false, not 0"),
        (
            "main: {type: box, sides: [1, 2], inside: {type: boxx}}",
            "s.yaml:1: unknown type 'boxx' for 'main.inside' (did you mean 'box'?); known: box, circle",
        ),
        (
            "main: {radius: 1, sides: [1, 2]}",
            "s.yaml:1: unknown key 'main.sides': 'sides' is a key of type 'box', not of 'circle'",
        ),
        ("more: {a: {type: box}}", "s.yaml:1: 'more.a.sides' is missing: it must be a list of 2 numbers"),
        ("width: 1\nflag: true\nwindow:\n  size: 5\n", "s.yaml:4: 'window.size': a narrow scene cannot have a flag"),
    ],
)
def test_messages(tmp_path, text, message):
    assert check(tmp_path, text).rstrip() == message


def test_whole_fractions_count_as_whole_numbers(tmp_path):
    assert check(tmp_path, "width: 1e3\n").width == 1000


def test_assignment_is_checked_too():
    scene = Scene()
    with pytest.raises(ValueError):
        scene.width = "3"
    with pytest.raises(ValueError):
        Scene(windows=3)


def test_helpers_that_inherit_a_type_are_no_kinds():
    class Disc(Circle):
        pass

    assert Shape.choices() == {"circle": Circle, "box": Box}
