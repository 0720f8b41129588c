"""The runs: their list, the chosen one as it goes, and what may be done with it. This page only looks at folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from stentor.studio.projects import Projects
from stentor.studio.runs import jobs, watch
from stentor.studio.runs.html_fragments import style
from stentor.studio.runs.try_model import MODEL_CACHE
from stentor.studio.steps.choices import Names, Several
from stentor.studio.steps.shared import Shared, on
from stentor.studio.texts import say

OFTEN, SELDOM = 4.0, 10.0
"""Seconds between two looks, while something runs and otherwise."""
Sent = dict[str, Any]
"""What a page shows now: nothing is sent twice."""


def build(shared: Shared, tab: gr.Tab) -> None:
    """The list of runs, the chosen run, its buttons, and the comparison."""
    gr.HTML(f'<style>{style()}</style><h2 class="stentor-runs">{say("runs_title")}</h2>', padding=False)
    empty = gr.Markdown(say("runs_none"), elem_id="no_runs")
    with gr.Column(visible=False, elem_id="runs") as all_of_it:
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=230):
                run = Names([], label=say("runs"), show_label=False, elem_id="run", container=False)
            with gr.Column(scale=3, min_width=320):
                status = gr.HTML(elem_id="status", padding=False)
                with gr.Row(elem_id="run_buttons"):
                    stop = gr.Button(say("stop"), elem_id="stop", visible=False, min_width=120)
                    kill = gr.Button(say("kill"), variant="stop", elem_id="kill", visible=False, min_width=120)
                    resume = gr.Button(say("resume"), variant="primary", elem_id="resume", visible=False, min_width=120)
                    retry = gr.Button(say("retry"), elem_id="retry", visible=False, min_width=120)
                    delete = gr.Button(say("delete_run"), elem_id="delete", visible=False, min_width=120)
                with gr.Group(visible=False, elem_id="sure") as sure:
                    question = gr.Markdown(container=True)
                    with gr.Row():
                        yes = gr.Button(say("delete_yes"), variant="stop", elem_id="delete_yes", min_width=120)
                        no = gr.Button(say("delete_no"), elem_id="delete_no", min_width=120)
                memory = gr.HTML(elem_id="memory", padding=False)
        curves = gr.HTML(elem_id="curves", padding=False)
        with gr.Accordion(say("samples_title"), open=True):
            samples = gr.HTML(elem_id="samples", padding=False)
        with gr.Accordion(say("log"), open=False):
            log = gr.Textbox(
                show_label=False,
                lines=12,
                max_lines=12,
                autoscroll=True,
                interactive=False,
                elem_id="log",
                container=False,
            )
        with gr.Accordion(say("compare_title"), open=False, visible=False) as comparison:
            others = Several(
                [],
                multiselect=True,
                label=say("compare"),
                info=say("compare_help"),
                elem_id="compare",
                max_choices=watch.MOST_COMPARED - 1,
            )
            table = gr.HTML(elem_id="compared", padding=False)
    sent = gr.State({})
    timer = gr.Timer(OFTEN)

    pieces = {"status": status, "curves": curves, "samples": samples, "memory": memory, "log": log, "table": table}
    buttons = {"stop": stop, "kill": kill, "resume": resume, "retry": retry, "delete": delete}
    outputs = [sent, timer, run, others, empty, all_of_it, comparison, *pieces.values(), *buttons.values()]

    def look(projects: Projects, chosen: str | None, beside: Sequence[str], before: Sent) -> list[Any]:
        """What changed since this page was told last, for `outputs`."""
        choices = watch.choices(projects)
        names = [name for _, name in choices]
        requested, requested_beside = chosen, list(beside or ())
        chosen = chosen if chosen in names else (names[0] if names else None)
        beside = [name for name in requested_beside if name in names and name != chosen]
        # What the person chose is not sent back: they may have chosen anew meanwhile.
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
            **({name: hash(view.__dict__[name]) for name in pieces} if view else {}),
            "can": view.can if view else frozenset(),
        }

        def new(key: str, made: Any) -> Any:
            return made() if now.get(key) != before.get(key) else gr.skip()

        if now == before:
            return [gr.skip()] * len(outputs)
        return [
            now,
            new("often", lambda: gr.Timer(OFTEN if now["often"] else SELDOM)),
            new("run", lambda: Names(choices, **value)),
            new("others", lambda: Several(list(now["others"][0]), **value_beside)),
            new("some", lambda: gr.Markdown(visible=not names)),
            new("some", lambda: gr.Column(visible=bool(names))),
            new("several", lambda: gr.Accordion(visible=len(names) > 1)),
            *(new(name, lambda name=name: getattr(view, name) if view else "") for name in pieces),
            *(new("can", lambda name=name: gr.Button(visible=name in now["can"])) for name in buttons),
        ]

    def opened(projects: Projects, chosen: str | None, beside: Sequence[str]) -> list[Any]:
        return look(projects, chosen, beside, {})

    def needed(projects: Projects, chosen: str | None) -> jobs.Job:
        if not chosen:
            raise gr.Error(say("no_run"), print_exception=False)
        return jobs.find(projects, chosen)

    def stopped(projects: Projects, chosen: str | None, beside: Sequence[str], before: Sent) -> list[Any]:
        jobs.stop(needed(projects, chosen))
        return look(projects, chosen, beside, before)

    def killed(projects: Projects, chosen: str | None, beside: Sequence[str], before: Sent) -> list[Any]:
        jobs.kill(needed(projects, chosen))
        return look(projects, chosen, beside, before)

    def resumed(projects: Projects, chosen: str | None, beside: Sequence[str], before: Sent) -> list[Any]:
        job = needed(projects, chosen)
        MODEL_CACHE.keep_only()  # what was tried gives its memory to the training
        jobs.resume(projects, job)
        gr.Info(say("resumed"))
        return look(projects, chosen, beside, before)

    def again(projects: Projects, chosen: str | None) -> str:
        return needed(projects, chosen).name

    def asked(projects: Projects, chosen: str | None) -> list[Any]:
        return [gr.Group(visible=True), say("delete_sure", name=needed(projects, chosen).name)]

    def deleted(projects: Projects, chosen: str | None, beside: Sequence[str], before: Sent) -> list[Any]:
        jobs.delete(projects, needed(projects, chosen))
        gr.Info(say("deleted_run", name=chosen))
        return [gr.Group(visible=False), *look(projects, None, beside, before)]

    here = [run, others, sent]
    for event in (shared.page.load, tab.select):
        on(shared, event, opened, [run, others], outputs)
    on(shared, shared.started.change, opened, [shared.started, others], outputs)
    for event in (run.input, others.input):
        on(shared, event, look, here, outputs)
    on(shared, timer.tick, look, here, outputs, trigger_mode="once")
    on(shared, stop.click, stopped, here, outputs, trigger_mode="once")
    on(shared, kill.click, killed, here, outputs, trigger_mode="once")
    on(shared, resume.click, resumed, here, outputs, trigger_mode="once")
    on(shared, retry.click, again, run, shared.again)
    on(shared, delete.click, asked, run, [sure, question])
    no.click(lambda: gr.Group(visible=False), None, sure, api_visibility="private", show_progress="hidden")
    run.input(lambda: gr.Group(visible=False), None, sure, api_visibility="private", show_progress="hidden")
    on(shared, yes.click, deleted, here, [sure, *outputs], trigger_mode="once")
