"""The runs: their list, the chosen one as it goes, and what may be done with it. This page only looks at folders."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import gradio as gr

from stentor.studio.projects import Projects
from stentor.studio.runs import detached, jobs, watch
from stentor.studio.runs.try_model import MODEL_CACHE
from stentor.studio.steps.shared import Names, Several, Shared, labelled
from stentor.studio.texts import say

OFTEN, SELDOM = 4.0, 10.0
"""Seconds between two looks, while something runs and otherwise."""
Action = Callable[[Projects, jobs.Job], None]
Sent = dict[str, Any]
"""Values that a page shows now: nothing is sent twice."""
PIECES = ("status", "curves", "samples", "memory", "log", "table")
"""Parts of a `RunView` that are sent as they are."""
_SURE = """(name, ...values) => [
  name && confirm(window.stentorTexts.delete_sure.replaceAll('{name}', name)) ? name : '', ...values]"""
BUTTONS = ("stop", "kill", "resume", "labels", "round", "retry", "delete")


def build(shared: Shared, tab: gr.Tab) -> None:
    """The list of runs, the chosen run, its buttons, and the comparison."""
    w = _layout()
    outputs = [w.sent, w.timer, w.run, w.others, w.empty, w.runs, w.comparison]
    outputs += [*(w.pieces[name] for name in PIECES), *(w.buttons[name] for name in BUTTONS)]
    inputs = [w.run, w.others, w.sent]
    shared.on([shared.page.load, tab.select], _look, [w.run, w.others], outputs)
    shared.on(shared.started.change, _look, [shared.started, w.others], outputs)
    shared.on([w.run.input, w.others.input], _look, inputs, outputs)
    shared.on(w.timer.tick, _look, inputs, outputs, trigger_mode="once")
    for name, action in _ACTIONS.items():
        shared.on(w.buttons[name].click, partial(_act, action), inputs, outputs, trigger_mode="once")
    shared.on(w.buttons["retry"].click, lambda projects, name: _needed(projects, name).name, w.run, shared.again)
    shared.on(w.buttons["delete"].click, _delete, inputs, outputs, trigger_mode="once", js=_SURE)


def _layout() -> SimpleNamespace:
    w = SimpleNamespace(pieces={}, buttons={})
    gr.HTML(f'<style>{watch.style()}</style><h2 class="stentor-runs">{say("runs_title")}</h2>', padding=False)
    w.empty = gr.Markdown(say("runs_none"), elem_id="no_runs")
    with gr.Column(visible=False, elem_id="runs") as w.runs:
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=230):
                w.run = Names([], label=say("runs"), show_label=False, elem_id="run", container=False)
            with gr.Column(scale=3, min_width=320):
                w.pieces["status"] = gr.HTML(elem_id="status", padding=False)
                with gr.Row(elem_id="run_buttons"):
                    for name in BUTTONS:
                        variant = {"kill": "stop", "resume": "primary"}.get(name, "secondary")
                        text = say(
                            {"delete": "delete_run", "round": "next_round", "labels": "suggest_labels"}.get(name, name)
                        )
                        w.buttons[name] = gr.Button(text, variant=variant, elem_id=name, visible=False, min_width=120)
                w.pieces["memory"] = gr.HTML(elem_id="memory", padding=False)
        w.pieces["curves"] = gr.HTML(elem_id="curves", padding=False)
        with gr.Accordion(say("samples_title"), open=True):
            w.pieces["samples"] = gr.HTML(elem_id="samples", padding=False)
        with gr.Accordion(say("log"), open=False):
            w.pieces["log"] = gr.Textbox(
                label=say("log"),
                show_label=False,
                lines=12,
                max_lines=12,
                autoscroll=True,
                interactive=False,
                elem_id="log",
                container=False,
            )
        with gr.Accordion(say("compare_title"), open=False, visible=False) as w.comparison:
            w.others = Several(
                [], multiselect=True, **labelled("compare", info="compare_help"), max_choices=watch.MOST_COMPARED - 1
            )
            w.pieces["table"] = gr.HTML(elem_id="compared", padding=False)
    w.sent = gr.State({})
    w.timer = gr.Timer(OFTEN)
    return w


def _look(projects: Projects, chosen: str | None, beside: Sequence[str], before: Sent | None = None) -> list[Any]:
    """Changes since the page was sent `before` (nothing: all of it), for the outputs of `build`."""
    before = before or {}
    choices = watch.choices(projects)
    names = [name for _, name in choices]
    requested, requested_beside = chosen, list(beside or ())
    chosen = chosen if chosen in names else (names[0] if names else None)
    beside = [name for name in requested_beside if name in names and name != chosen]
    # What the person chose is not sent back: they may have changed it meanwhile.
    value = {"value": chosen} if not before or chosen != requested else {}
    value_beside = {"value": beside} if not before or beside != requested_beside else {}
    compared = [jobs.find(projects, name) for name in beside]
    view = watch.view(projects, jobs.find(projects, chosen), compared) if chosen else None
    now: Sent = {
        "often": any(jobs.alive(job) for job in jobs.jobs(projects)),
        "run": (tuple(choices), chosen),
        "others": (tuple(n for n in names if n != chosen), tuple(beside)),
        "some": bool(names),
        "several": len(names) > 1,
        **({name: hash(vars(view)[name]) for name in PIECES} if view else {}),
        "can": view.can if view else frozenset(),
    }
    if now == before:
        return [gr.skip()] * (7 + len(PIECES) + len(BUTTONS))

    def changed(key: str, update: Callable[[], Any]) -> Any:
        return update() if now.get(key) != before.get(key) else gr.skip()

    return [
        now,
        changed("often", lambda: gr.Timer(OFTEN if now["often"] else SELDOM)),
        changed("run", lambda: Names(choices, **value)),
        changed("others", lambda: Several(list(now["others"][0]), **value_beside)),
        changed("some", lambda: gr.Markdown(visible=not names)),
        changed("some", lambda: gr.Column(visible=bool(names))),
        changed("several", lambda: gr.Accordion(visible=len(names) > 1)),
        *(changed(name, lambda name=name: vars(view)[name] if view else "") for name in PIECES),
        *(changed("can", lambda name=name: gr.Button(visible=name in now["can"])) for name in BUTTONS),
    ]


def _needed(projects: Projects, name: str | None) -> jobs.Job:
    if not name:
        raise gr.Error(say("no_run"), print_exception=False)
    return jobs.find(projects, name)


def _act(action: Action, projects: Projects, name: str | None, beside: Sequence[str], before: Sent) -> list[Any]:
    action(projects, _needed(projects, name))
    return _look(projects, name, beside, before)


def _resume(start: Action, projects: Projects, job: jobs.Job) -> None:
    MODEL_CACHE.keep_only()  # what was tried gives its memory to the training
    start(projects, job)
    gr.Info(say("resumed"))


_ACTIONS: dict[str, Action] = {
    "stop": lambda projects, job: detached.end(job.folder),
    "kill": lambda projects, job: detached.end(job.folder, kill=True),
    "resume": partial(_resume, jobs.resume),
    "round": partial(_resume, jobs.next_round),
    "labels": lambda projects, job: gr.Info(say("labels_suggested", count=jobs.suggest_labels(projects, job))),
}
"""Actions of the buttons on the chosen run, except `retry` and `delete`."""


def _delete(projects: Projects, name: str, beside: Sequence[str], before: Sent) -> list[Any]:
    if not name:  # the person thought better of it
        return [gr.skip()] * (7 + len(PIECES) + len(BUTTONS))
    jobs.delete(projects, jobs.find(projects, name))
    gr.Info(say("deleted_run", name=name))
    return _look(projects, None, beside, before)
