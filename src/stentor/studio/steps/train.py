"""Step 3: what to train, the run file that comes of it, what it needs, and the start. What becomes of it is in runs.py.

The run file in the editor is the whole truth. Choices rewrite it; every setting, basic or not, is read from it and
changed in it; what a person types there counts. So there is one list of settings, the config's, and nothing to get out
of step.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import gradio as gr

from stentor.config.yaml_writer import dump
from stentor.errors import StentorError
from stentor.sources.hub_choice import HubChoice
from stentor.studio.projects import Projects
from stentor.studio.runs import data_snapshot, jobs, plans, settings
from stentor.studio.runs.form import BASIC, plain, sections, written
from stentor.studio.runs.open_run_file import OpenRunFile, Rewritten
from stentor.studio.runs.settings import FULL, LORA, OWN
from stentor.studio.runs.try_model import MODEL_CACHE
from stentor.studio.steps import publish, runs
from stentor.studio.steps.hub_field import hub_chosen, hub_field, hub_shown
from stentor.studio.steps.shared import Choice, Shared, few_held_out, labelled
from stentor.studio.steps.train_settings import (
    LAST,
    answer_of,
    basic_widget,
    by_key,
    group,
    label_of,
    line,
    listen,
    page_of,
    settled,
    standing,
    take_over,
    told,
)
from stentor.studio.texts import render, say

_SCROLL = "() => document.querySelector('%s')?.scrollIntoView({behavior: 'smooth', block: 'start'})"


class Selection(NamedTuple):
    """The choices that a run file is written for; it is not written again while they stay."""

    dataset: str
    task: str
    model: str
    family: str
    """Note on a model that is on no list, whose Hub id or folder is `source`; empty otherwise."""
    source: str
    method: str
    hub: HubChoice | None
    """The data set on the Hub that takes the place of `dataset`."""


def build(shared: Shared, tab: gr.Tab) -> None:
    """The form and the start, the runs, and for experts the run file and the command."""
    w = _layout(shared, tab)
    runs.build(shared, tab)
    _experts(w)
    shared.keep(w.task, w.model, w.family, w.source, *w.hub.inputs, w.method, w.yaml, w.name)
    _listen_to_choices(shared, tab, w)
    for basic, widget in zip(BASIC, w.basics, strict=True):
        listen(shared, widget, basic.key, w)
    _listen_to_start(shared, w)


def _layout(shared: Shared, tab: gr.Tab) -> SimpleNamespace:
    w = SimpleNamespace(open_file=gr.State(OpenRunFile()))
    gr.HTML(f'<h2 class="stentor-area" id="train_form">{say("train_form")}</h2>', padding=False)
    gr.Markdown(say("train_intro"))
    w.facts = gr.HTML(elem_id="train_facts")
    # Lists follow one another: what is chosen is checked by `_choose`, not against a list that has just changed.
    with gr.Row():
        w.task = Choice(settings.tasks(), value="transcribe", **labelled("task"), min_width=280)
        w.model = Choice([], **labelled("model"), scale=2, min_width=280)
    w.about = gr.HTML(elem_id="model_about")
    with gr.Row(visible=False) as w.other:
        w.family = Choice([], **labelled("family"))
        w.source = gr.Textbox(**labelled("own", info="own_help"), max_length=300, scale=2)
    w.hub = hub_field()
    w.method = gr.Radio(_methods((FULL, LORA)), value=FULL, **labelled("method"))
    with gr.Row(elem_id="basic"):
        w.basics = [basic_widget(basic) for basic in BASIC]
    w.proposals = gr.HTML(elem_id="proposals")
    w.yaml = gr.Code(**labelled("yaml"), language="yaml", interactive=True, render=False, lines=10, max_lines=24)
    w.number = gr.Number(0, elem_classes="stentor-channel", elem_id="yaml_number")
    w.drawn = gr.State(0.0)
    w.sent, w.changed = (gr.Textbox(elem_classes="stentor-channel") for _ in range(2))
    """Answers that the page takes over: to a choice, and to a change of one setting."""
    w.make = gr.Button(say("make_yaml"), elem_id="make", size="sm")
    with gr.Accordion(say("advanced"), open=False, elem_id="advanced"):
        gr.Markdown(say("advanced_help"))
        for section, meaning in sections().items():
            group(shared, section, meaning, w)
    w.name = gr.Textbox(**labelled("run_name"), max_length=64, render=False, scale=2, min_width=240)
    w.after = publish.after_training(shared, tab, w.name)
    with gr.Row(equal_height=True):
        w.name.render()
        w.plan = gr.Button(say("plan"), elem_id="plan", min_width=160)
        w.start = gr.Button(say("start"), variant="primary", elem_id="start", min_width=160)
    w.remarks = gr.HTML(elem_id="yaml_said")
    w.plan_result = gr.HTML(elem_id="plan_result")
    w.retried = gr.State("")
    """The run whose settings were taken over, if any."""
    return w


def _experts(w: SimpleNamespace) -> None:
    gr.HTML(f'<h2 class="stentor-area" id="experts">{say("experts")}</h2>', padding=False)
    gr.Markdown(say("experts_help"))
    w.yaml.render()
    w.command = gr.Code(**labelled("command"), language="shell", interactive=False, lines=1)


def _listen_to_choices(shared: Shared, tab: gr.Tab, w: SimpleNamespace) -> None:
    inputs = [shared.dataset, w.task, w.model, w.family, w.source, *w.hub.inputs, w.method, *page_of(w)]
    outputs = [w.facts, w.task, w.model, w.about, w.other, w.family, w.method, *w.hub.outputs, *answer_of(w)]
    # One listener for all, so that they follow each other.
    choices = [w.task.input, w.model.input, w.family.input, w.source.submit, w.source.blur, *w.hub.events]
    opened = [tab.select, shared.shown, shared.started.change]
    with_method = partial(_choose, method_too=True)
    for event, answer in (
        (partial(gr.on, choices), _choose),
        (partial(gr.on, opened), partial(_choose, opened=True)),
        (w.method.input, with_method),
        (w.make.click, partial(with_method, rewrite=True)),
    ):
        take_over(shared.on(event, answer, inputs, outputs, trigger_mode=LAST), w.sent, w)
    take_over(shared.on(w.yaml.blur, settled, page_of(w), answer_of(w)), w.sent, w)
    w.make.click(lambda: "", None, w.retried, api_visibility="private", show_progress="hidden")


def _listen_to_start(shared: Shared, w: SimpleNamespace) -> None:
    once: dict[str, Any] = {"trigger_mode": "once"}
    typed = [w.name.change, w.yaml.change]
    shared.on(typed, settings.command, [w.name, w.yaml], w.command, trigger_mode=LAST)
    shared.on(typed, standing, [w.open_file, w.yaml, w.name], [w.remarks, w.start], trigger_mode=LAST)
    shared.on(w.plan.click, _planned, page_of(w), w.plan_result, **once, concurrency_limit=1, concurrency_id="plan")
    inputs, begun = [w.retried, *page_of(w), *w.after], [shared.started, w.name, w.retried]
    asks = {"js": publish.confirming("after_sure")}
    (start,) = shared.on(w.start.click, _begin, inputs, begun, **once, **asks, concurrency_limit=None)
    start.success(None, js=_SCROLL % "h2.stentor-runs", api_visibility="private")
    reused = [w.retried, shared.again, w.plan_result, *answer_of(w)]
    again = shared.on(shared.again.change, _reused, [shared.again, *page_of(w)], reused)
    take_over(again, w.sent, w)
    again[0].then(None, js=_SCROLL % "#train_form", api_visibility="private")


def _choose(
    projects: Projects, *values: Any, rewrite: bool = False, method_too: bool = False, opened: bool = False
) -> list[Any]:
    """All that follows from the choices. The run file is written where one has changed, or to be the proposal alone
    (`rewrite`); with `method_too` the method of training is taken from the page. A page that is `opened` keeps the run
    file that it has. Without a model there is no run file."""
    dataset, task, choice, family, source, *typed, method, open_file, number, text = values[: -len(BASIC) - 1]
    *fields, name = values[-len(BASIC) - 1 :]
    with open_file.choosing:
        turned = open_file.turn_to(str(dataset), number or 0, text or "", by_key(fields))
        text = open_file.read(open_file.number if turned else number, text or "", by_key(fields))
        before, hub, kept = open_file.selection, hub_chosen(*typed), opened and bool(text.strip())
        data, of_hub = hub_shown(hub)
        try:
            facts = settings.facts(projects.dataset(dataset)) if dataset and not hub else None
        except StentorError as error:
            return [line(str(error)), *[gr.skip()] * 6, *of_hub, *told(open_file, text, None, ())]
        tasks = settings.tasks(facts)
        task = task if task in _keys(tasks) else tasks[0][1]
        models = settings.models(task, projects)
        if choice not in _keys(models) or (before and task != before.task):
            choice = settings.first(task)
        families = settings.pretrained_families(task)
        family = family if family in _keys(families) else (families[0][1] if families else None)
        now = Selection(
            str(dataset), task, str(choice), str(family) if choice == OWN else "", source or "", method, hub
        )
        methods, new = (FULL, LORA), Rewritten(text) if turned and text.strip() else None
        try:
            model = settings.chosen(str(choice), task, projects, family, source)
            methods, about = model.methods, model.help
            if now[1:5] != before[1:5] if before else not kept:
                method = model.default
            elif before and not method_too:
                method = before.method  # the page may not have shown yet what was proposed
            now = now._replace(method=method if method in methods else methods[0])
            if facts is not None and model.scratch and facts.hours < settings.LEAST_HOURS:
                about = f"{about} {say('scratch_little', time=plans.duration(facts.hours * 3600))}"
            if not (data if hub else dataset):
                new = open_file.none(text) if now != before and (hub or (before and before.hub)) else None
            elif rewrite or now != before or not text.strip():
                tree = settings.start(task, model, now.method, data or projects.dataset(dataset))
                new = _rewritten(open_file, tree, text, now, fresh=rewrite, kept=kept)
        except StentorError as error:
            about = str(error)
            new = open_file.none(text) if now != before else None
        open_file.selection = now
        proposed = ""
        if new is not None and new.text and name in (None, "", open_file.name):
            proposed = open_file.name = settings.run_name(projects, data.name if data else dataset, str(choice), source)
        return [
            line(
                _counts(projects, str(dataset), task, facts),
                away=any(settings.away(m) for m in settings.known().values() if task in m.tasks),
            ),
            gr.Dropdown(tasks, value=task),
            gr.Dropdown(models, value=choice),
            line(about),
            gr.Row(visible=choice == OWN),
            gr.Dropdown(families, value=family),
            gr.Radio(_methods(methods), value=now.method, visible=len(methods) > 1),
            *of_hub,
            *told(open_file, text, new, (*fields, name), proposed, fresh=rewrite),
        ]


def _rewritten(
    open_file: OpenRunFile, tree: dict[str, Any], text: str, now: Selection, fresh: bool, kept: bool
) -> Rewritten:
    """The run file of the choices `now`, whose proposal is `tree`. What the person changed in the file `text` stays,
    but for what the choice was about; nothing of it with `fresh`, all of it in a new session that has `kept` it."""
    before = open_file.selection
    if fresh or not before:
        open_file.begin(dump(tree) if kept else "")
    chosen: tuple[str, ...] = ()
    if before and now[1:5] != before[1:5]:
        chosen += ("model", "task", "losses", "stages")
    if before and (now.dataset, now.hub) != (before.dataset, before.hub):
        chosen += ("data.train", "data.eval", "data.test")
    return open_file.choose(tree, text, chosen)


def _counts(projects: Projects, dataset: str, task: str, facts: settings.DatasetFacts | None) -> str:
    if facts is None:
        return ""
    time = plans.duration(facts.hours * 3600)
    said = [say("train_hours", count=facts.records, held_out=facts.held_out, time=time)]
    said += [say("train_left_out", count=facts.left_out)] if facts.left_out else []
    said += [few_held_out(projects.dataset(dataset))] if task.startswith("transcribe") else []
    return " ".join(filter(None, said))


def _keys(choices: Sequence[tuple[str, str]]) -> set[str]:
    return {key for _, key in choices}


def _methods(methods: Sequence[str]) -> list[tuple[str, str]]:
    """(label, method) of ways to train."""
    return [(say(f"method_{name}"), name) for name in (FULL, LORA) if name in methods]


def _planned(projects: Projects, *page: Any) -> Iterator[str]:
    yield line(say("plan_working"), "working")
    MODEL_CACHE.keep_only()  # as at the start: it is the run's memory that is tried
    try:
        stages = plans.plan(projects, _meant(*page))
    except StentorError as error:
        yield line(str(error), "wrong")
        return
    said = []
    for number, plan in enumerate(stages, 1):
        task = settings.title("task", plan["task"])
        title = say("plan_stage", number=number, count=len(stages), task=task) if len(stages) > 1 else ""
        said.append(render("plan", title, plans.table(plan), plans.warnings(plan)))
    yield "".join(said)


def _begin(projects: Projects, retry_of: str, open_file: OpenRunFile, *values: Any) -> list[Any]:
    page, after = values[: 3 + len(BASIC)], values[3 + len(BASIC) :]
    text, name = _meant(open_file, *page), page[-1].strip()
    then = publish.chosen_afterwards(projects, name, *after)
    _divided(projects, text)  # recordings that came since the file was written as well
    MODEL_CACHE.keep_only()  # what was tried gives its memory to the training
    job = jobs.start(projects, text, name, retry_of=retry_of or None, then=then)
    gr.Info(say("started", name=job.name))
    open_file.name = _next(projects, job.name)
    return [job.name, open_file.name, ""]


def _divided(projects: Projects, text: str) -> None:
    """Bring the parts of the data sets that a run file names up to date."""
    for dataset in map(projects.dataset, projects.datasets()):
        if f"{dataset.folder}/" in text:
            dataset.parts()


def _meant(open_file: OpenRunFile, number: int, text: str | None, *fields: Any) -> str:
    """The run file as the page shows it. Raises a plain error for none, and for a field that cannot be."""
    meant = open_file.read(number, text or "", by_key(fields))
    for key, why in open_file.wrong.items():
        raise StentorError(f"{label_of(key)}: {why}")
    if not meant.strip():
        raise gr.Error(say("yaml_none"), print_exception=False)
    return meant


def _reused(projects: Projects, name: str, open_file: OpenRunFile, *page: Any) -> list[Any]:
    """The settings of the run `name` in the form, to be started again, on its data sets as they are now."""
    if not name:
        return [gr.skip()] * 3 + told(open_file, "", None, ())
    job = jobs.find(projects, name)
    tree, copies = data_snapshot.as_now(plain(job.yaml), job.folder, job.about.get("copies", {}))
    text = written(tree, job.yaml)
    _divided(projects, text)
    open_file.begin(text)
    open_file.name = _next(projects, name)
    gr.Info(say("reused", name=name))
    note = say("reused_data", name=name, **data_snapshot.changes(copies)._asdict()) if copies else ""
    _, was, *fields = page
    return [name, "", "", *told(open_file, was or "", Rewritten(text), fields, open_file.name, note, fresh=True)]


def _next(projects: Projects, name: str) -> str:
    """A free name after one that is taken."""
    stem, _, last = name.rpartition("-")
    stem = stem if stem and last.isdigit() else name
    return settings.free_name(projects, stem)
