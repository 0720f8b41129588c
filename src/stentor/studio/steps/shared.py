"""Parts that the steps of the page share: the chosen data set, lists to choose from, and how an event reaches the
projects of who asks."""

import html
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio import component_meta

from stentor.errors import StentorError, without_secrets
from stentor.studio import train_test_split
from stentor.studio.projects import DataSet, Projects
from stentor.studio.texts import for_page, say

# Choices are filled while the page is open. What the page sends is judged where it is used, and not by the choices that
# this process remembers of the page: after a restart of the studio it remembers none, and an open page continues.

# Gradio writes a stub beside the module of every component, also where the package is installed.
_writes_stub = component_meta.create_or_modify_pyi
component_meta.create_or_modify_pyi = lambda *arguments: None
try:

    class Choice(gr.Dropdown):
        """One of a list, or none."""

        is_template = True

        def preprocess(self, payload: Any) -> str | None:
            return payload if isinstance(payload, str) else None

    class Several(gr.Dropdown):
        """Any number of a list."""

        is_template = True

        def preprocess(self, payload: Any) -> list[str]:
            return [name for name in payload if isinstance(name, str)] if isinstance(payload, list) else []

    class Names(gr.Radio):
        """One of a list that is seen whole, or none."""

        is_template = True
        preprocess = Choice.preprocess
finally:
    component_meta.create_or_modify_pyi = _writes_stub


@dataclass
class Shared:
    """Arguments for building every step."""

    page: gr.Blocks
    projects_of: Callable[[str], Projects]
    """The projects of a person, by the name that the server gave them."""
    dataset: gr.Dropdown
    """Name of the data set that the page is about."""
    language: gr.Dropdown
    changed: gr.Button
    """Hidden. Clicked when recordings or runs were added or removed, by Python's events and by JavaScript."""
    started: gr.Textbox
    """Hidden. Name of the run that this page started last."""
    again: gr.Textbox
    """Hidden. Name of a run whose settings are wanted in the editor, to be started again."""

    def __post_init__(self) -> None:
        self._shown = gr.Textbox("", visible="hidden", elem_id="shown")
        self._kept: list[Any] = []
        self.shown = self._shown.change
        """The event after another data set was chosen, or the first."""

    def on(
        self, events: Any, function: Callable[..., Any], inputs: Any = None, outputs: Any = None, **options: Any
    ) -> list[Any]:
        """Listen to an event of a component, or to each of several, with `function(projects, *values)`. `projects` are
        those of the person who asks.

        It may be a generator. Failures become one sentence, and nothing is offered as an API.
        """
        if inspect.isgeneratorfunction(function):

            def called(request: gr.Request, *values: Any) -> Any:
                yield from _each_with_errors(function(self.projects_of(str(request.username)), *values))
        else:

            def called(request: gr.Request, *values: Any) -> Any:
                return _with_errors(lambda: function(self.projects_of(str(request.username)), *values))

        called.__annotations__ = {"request": gr.Request}  # a string in this module; Gradio looks for the class
        options = {"api_visibility": "private", "show_progress": "hidden", **options}
        events = events if isinstance(events, (list, tuple)) else [events]
        return [event(called, inputs, outputs, **options) for event in events]

    def keep(self, *fields: Any) -> None:
        """Have the browser keep what these fields hold, by data set, and fill them in when that is shown again."""
        self._kept += fields
        for field in fields:
            js = f"(value) => stentorKeep.put({json.dumps(field.elem_id)}, value)"
            field.change(None, field, None, js=js, api_visibility="private")

    def fill(self) -> None:
        """Listen to the choice of a data set; called when all parts are built. What is kept is there before `shown`."""
        fields = {f.elem_id: isinstance(f, gr.Dropdown) and not f.choices for f in self._kept}
        js = f"(name, shown, ...values) => stentorKeep.shown(name, {json.dumps(fields)}, values)"
        values = [self._shown, *self._kept]
        self.dataset.change(None, [self.dataset, *values], values, js=js, api_visibility="private")


def labelled(key: str, info: str | None = None) -> dict[str, Any]:
    """Arguments of a component that is known by `key`: its label, the text `info` below it (for Gradio Markdown, which
    it is not), and its id in the page."""
    return {"label": say(key), "elem_id": key, **({"info": literal(say(info))} if info else {})}


def opened(projects: Projects, name: str | None) -> DataSet:
    """The chosen data set. Raises a plain error when there is none."""
    if not name:
        raise gr.Error(say("no_dataset"), print_exception=False)
    return projects.dataset(name)


def few_held_out(dataset: DataSet) -> str:
    """A warning where what is held out is too little to measure by; empty elsewhere."""
    sides = dataset.sides()
    words = train_test_split.words(r for r in dataset.records() if sides.get(r["id"]) == "held_out")
    if not sides or words >= train_test_split.LEAST_WORDS:
        return ""
    return say("split_small", count=words, percent=min(100, round(300 / max(words, 1))))


def literal(text: str) -> str:
    """Text for the `info` of a component, of which Gradio makes italics and links: nothing of it is lost. A pattern
    ends at the end of a line, which the page shows as a space. What is in backticks is shown as code."""
    inner = re.sub(r"(\*|__|(?<!\w)_)(?=\S*\1)", "\\1\u2028", text.replace("](", "]\u2060("))
    return re.sub(r"([*_]\S*) ", "\\1\r", inner)


def plain(text: str) -> str:
    """Text for a Markdown component, in which nothing of it is Markdown or HTML."""
    escaped = html.escape(text)
    return "".join(f"&#{ord(c)};" if c in "\\`*_{}[]()#+-.!|~$:" else c for c in escaped)


def _with_errors(call: Callable[[], Any]) -> Any:
    """The call's answer; failures are shown to the person: expected ones as they are, others by their kind alone.

    Messages are escaped: the page shows them as HTML, and they may repeat a file's name or a transcript.
    """
    try:
        return call()
    except gr.Error:
        raise
    except StentorError as error:
        raise gr.Error(html.escape(for_page(error)), print_exception=False) from None
    except Exception as error:
        print(without_secrets(traceback.format_exc()), file=sys.stderr)
        raise gr.Error(say("unexpected", kind=type(error).__name__), print_exception=False) from None


def _each_with_errors(answers: Iterator[Any]) -> Iterator[Any]:
    end = object()
    while (answer := _with_errors(lambda: next(answers, end))) is not end:
        yield answer


def element(name: str, *tags: str, **attributes: str) -> str:
    """Elements of the page's own, as HTML, for the data set `name`, or with other attributes. What is around them has
    another name for each `name`:
    Gradio changes elements that look alike in place, and takes out every child that it did not make itself."""
    around = f"stentor-of-{name.encode().hex()}"
    values = " ".join(f'{key}="{html.escape(value)}"' for key, value in (attributes or {"dataset": name}).items())
    inside = "".join(f"<{tag} {values}></{tag}>" for tag in tags)
    return f'<{around} style="display: contents">{inside}</{around}>'
