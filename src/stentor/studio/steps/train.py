"""Step 3: what to train, the run file that comes of it, what it needs, and the start. What becomes of it is in runs.py.

The run file in the editor is the whole truth. Choices rewrite it; every setting, basic or not, is read from it and
changed in it; what a person types there counts. So there is one list of settings, the config's, and nothing to get out
of step.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import gradio as gr

from stentor.config.document import Mistakes
from stentor.config.yaml_writer import dump
from stentor.errors import StentorError
from stentor.studio.projects import Projects
from stentor.studio.runs import jobs, plans, settings
from stentor.studio.runs.form import BASIC, FormField, OpenRunFile, changed, form_of, read, sections, shown, value_of
from stentor.studio.runs.path_policy import checked
from stentor.studio.runs.settings import FULL, LORA, OWN
from stentor.studio.runs.try_model import MODEL_CACHE
from stentor.studio.steps.shared import Choice, Shared, few_held_out, labelled
from stentor.studio.texts import render, say

_IDS = {"train.epochs": "epochs", "optim.lr": "lr", "data.max_items": "batch", "model.lora.rank": "rank"}
LAST = "always_last"
"""Event option: of events that come while one is answered, the last is answered as well."""
_HOLD = "(...values) => { document.querySelector('#basic').inert = true; return values; }"
"""The basic settings take nothing while a choice is answered, which rewrites them."""
_RELEASE = "() => { document.querySelector('#basic').inert = false; }"
_SCROLL = "() => document.querySelector('#yaml')?.scrollIntoView({behavior: 'smooth', block: 'center'})"


class Selection(NamedTuple):
    """The choices that a run file is written for; it is not written again while they stay."""

    dataset: str
    task: str
    model: str
    family: str
    """Note on a model that is on no list, whose Hub id or folder is `source`; empty otherwise."""
    source: str
    method: str
    hub: str
    """The data set on the Hub that takes the place of `dataset`; empty for none."""


def build(shared: Shared, tab: gr.Tab) -> None:
    """Choices, settings, run file, plan and start."""
    widgets = _layout(shared)
    yaml, remarks, basics = widgets.yaml, widgets.remarks, widgets.basics
    _listen_to_choices(shared, tab, widgets)
    shared.on(yaml.change, lambda projects, text: _remarks(projects, text or ""), yaml, remarks, trigger_mode=LAST)
    shared.on(yaml.blur, lambda projects, text: _settled(projects, text or "")[1:], yaml, basics)
    for key, widget in zip(BASIC, basics, strict=True):
        _listen(shared, widget, key, widgets)
    _listen_to_start(shared, widgets)


def _layout(shared: Shared) -> SimpleNamespace:
    widgets = SimpleNamespace(open_file=gr.State(OpenRunFile()))
    gr.Markdown(say("train_intro"))
    widgets.facts = gr.HTML(elem_id="train_facts")
    # Lists follow one another: what is chosen is checked by `_choose`, not against a list that has just changed.
    with gr.Row():
        widgets.task = Choice(settings.tasks(), value="transcribe", **labelled("task"), min_width=280)
        widgets.model = Choice([], **labelled("model"), scale=2, min_width=280)
    widgets.about = gr.HTML(elem_id="model_about")
    with gr.Row(visible=False) as widgets.other:
        widgets.family = Choice([], **labelled("family"))
        widgets.source = gr.Textbox(**labelled("own", info="own_help"), max_length=300, scale=2)
    widgets.hub = gr.Textbox(**labelled("hub_data", info="hub_data_help"), max_length=200)
    widgets.method = gr.Radio(_methods((FULL, LORA)), value=FULL, **labelled("method"))
    with gr.Row(elem_id="basic"):
        widgets.basics = [
            gr.Textbox(**labelled(f"basic_{_IDS[key]}", info=f"basic_{_IDS[key]}_help"), min_width=200) for key in BASIC
        ]
    widgets.yaml = gr.Code(**labelled("yaml"), language="yaml", interactive=True, render=False, lines=10, max_lines=24)
    widgets.remarks = gr.HTML(elem_id="yaml_said", render=False)
    with gr.Accordion(say("advanced"), open=False, elem_id="advanced"):
        gr.Markdown(say("advanced_help"))
        for section, meaning in sections().items():
            _group(shared, section, meaning, widgets)
    widgets.remarks.render()
    with gr.Row(equal_height=True):
        widgets.name = gr.Textbox(**labelled("run_name"), max_length=64, scale=2, min_width=240)
        widgets.plan = gr.Button(say("plan"), elem_id="plan", min_width=160)
        widgets.start = gr.Button(say("start"), variant="primary", elem_id="start", min_width=160)
    widgets.plan_result = gr.HTML(elem_id="plan_result")
    widgets.yaml.render()
    widgets.make = gr.Button(say("make_yaml"), elem_id="make", size="sm")
    widgets.command = gr.Code(**labelled("command"), language="shell", interactive=False, lines=1)
    widgets.retried = gr.State("")
    """The run whose settings were taken over, if any."""
    return widgets


def _listen_to_choices(shared: Shared, tab: gr.Tab, widgets: SimpleNamespace) -> None:
    w = widgets
    inputs = [shared.dataset, w.task, w.model, w.family, w.source, w.hub, w.method, w.yaml, w.open_file]
    outputs = [w.facts, w.task, w.model, w.about, w.other, w.family, w.method]
    outputs += [w.remarks, *w.basics, w.yaml, w.name]
    # One listener for all, so that they follow each other.
    choices = [tab.select, shared.dataset.change, w.task.input, w.model.input, w.family.input]
    choices += [w.source.submit, w.source.blur, w.hub.submit, w.hub.blur, shared.started.change]
    with_method = partial(_choose, method_too=True)
    for event, answer in (
        (partial(gr.on, choices), _choose),
        (w.method.input, with_method),
        (w.make.click, partial(with_method, rewrite=True)),
    ):
        (chosen,) = shared.on(event, answer, inputs, outputs, trigger_mode=LAST, js=_HOLD)
        chosen.then(None, js=_RELEASE, api_visibility="private")
    w.make.click(lambda: "", None, w.retried, api_visibility="private", show_progress="hidden")


def _listen_to_start(shared: Shared, widgets: SimpleNamespace) -> None:
    yaml, name, retried, result = widgets.yaml, widgets.name, widgets.retried, widgets.plan_result
    once: dict[str, Any] = {"trigger_mode": "once"}
    typed = [name.change, yaml.change]
    shared.on(typed, settings.command, [name, yaml], widgets.command, trigger_mode=LAST)
    shared.on(widgets.plan.click, _planned, yaml, result, **once, concurrency_limit=1, concurrency_id="plan")
    started = [shared.started, name, retried]
    shared.on(widgets.start.click, _begin, [yaml, name, retried], started, **once, concurrency_limit=None)
    reused = [yaml, widgets.remarks, *widgets.basics, name, retried, shared.again, result]
    shared.on(shared.again.change, _reused, shared.again, reused)
    shared.again.change(None, js=_SCROLL, api_visibility="private")


def _choose(projects: Projects, *values: Any, rewrite: bool = False, method_too: bool = False) -> list[Any]:
    """All that follows from the choices. The run file is written where one has changed, or `rewrite`; with `method_too`
    the method of training is taken from the page. Without a model there is no run file."""
    began, open_file = time.monotonic(), values[-1]
    with open_file.choosing:
        return _chosen(projects, *values, began=began, rewrite=rewrite, method_too=method_too)


def _chosen(projects: Projects, *values: Any, began: float, rewrite: bool, method_too: bool) -> list[Any]:
    dataset, task, choice, family, source, hub, method, text, open_file = values
    hub = (hub or "").strip()
    before = open_file.selection
    try:
        facts = settings.facts(projects.dataset(dataset)) if dataset and not hub else None
    except StentorError as error:
        return [_line(str(error)), *[gr.skip()] * (9 + len(BASIC))]
    tasks = settings.tasks(facts)
    task = task if task in _keys(tasks) else tasks[0][1]
    models = settings.models(task, projects)
    if choice not in _keys(models) or (before and task != before.task):
        choice = settings.first(task)
    families = settings.pretrained_families(task)
    family = family if family in _keys(families) else (families[0][1] if families else None)
    now = Selection(str(dataset), task, str(choice), str(family) if choice == OWN else "", source or "", method, hub)
    methods, written = (FULL, LORA), None
    try:
        model = settings.chosen(str(choice), task, projects, family, source)
        methods, line = model.methods, model.help
        if not before or now[1:5] != before[1:5]:
            method = model.default
        elif not method_too:
            method = before.method  # the page may not have shown yet what was proposed
        method = method if method in methods else methods[0]
        now = now._replace(method=method)
        if facts is not None and model.scratch and facts.hours < settings.LEAST_HOURS:
            line = f"{line} {say('scratch_little', time=plans.duration(facts.hours * 3600))}"
        if (dataset or hub) and (rewrite or now != before or not text.strip()):
            tree = settings.start(task, model, method, hub or projects.dataset(dataset))
            written = open_file.choose(dump(tree), began, _with_setting)
    except StentorError as error:
        line, written = str(error), "" if now != before else None
    open_file.selection = now
    records = "" if facts is None else say("train_hours", train=facts.records, time=plans.duration(facts.hours * 3600))
    if facts is not None and task.startswith("transcribe"):
        records += " " + few_held_out(projects.dataset(str(dataset)))
    # What a person has just typed is left alone where no choice has changed.
    new = [gr.skip()] * (3 + len(BASIC))
    if written is not None:
        about = hub.split()[0].rpartition("/")[2] if hub else dataset
        name = settings.run_name(projects, about, str(choice), source) if written else gr.skip()
        new = [*_settled(projects, written), written, name]
    return [
        _line(records),
        gr.Dropdown(tasks, value=task),
        gr.Dropdown(models, value=choice),
        _line(line),
        gr.Row(visible=choice == OWN),
        gr.Dropdown(families, value=family),
        gr.Radio(_methods(methods), value=method, visible=len(methods) > 1),
        *new,
    ]


def _with_setting(text: str, key: str, value: Any) -> str:
    """A run file with one setting as a person has it; as it is where it has no such setting."""
    rows, _ = form_of(text)
    row = next((r for r in rows if r.key == key), None)
    return text if row is None else changed(text, row, value)


def _keys(choices: Sequence[tuple[str, str]]) -> set[str]:
    return {key for _, key in choices}


def _methods(methods: Sequence[str]) -> list[tuple[str, str]]:
    """(label, method) of ways to train."""
    return [(say(f"method_{name}"), name) for name in (FULL, LORA) if name in methods]


def _planned(projects: Projects, text: str) -> Iterator[str]:
    yield _line(say("plan_working"), "working")
    MODEL_CACHE.keep_only()  # as at the start: it is the run's memory that is tried
    try:
        stages = plans.plan(projects, _some(text))
    except StentorError as error:
        yield _line(str(error), "wrong")
        return
    yield "".join(_plan(stage, number, len(stages)) for number, stage in enumerate(stages, 1))


def _begin(projects: Projects, text: str, name: str, retry_of: str) -> list[Any]:
    text = _some(text)
    for dataset in map(projects.dataset, projects.datasets()):
        if f"{dataset.folder}/" in text:
            dataset.parts()  # recordings that came since the file was written are divided as well
    MODEL_CACHE.keep_only()  # what was tried gives its memory to the training
    job = jobs.start(projects, text, name.strip(), retry_of=retry_of or None)
    gr.Info(say("started", name=job.name))
    return [job.name, _next(projects, job.name), ""]


def _reused(projects: Projects, name: str) -> list[Any]:
    """The settings of the run `name` in the editor, to be started again."""
    if not name:
        return [gr.skip()] * (6 + len(BASIC))
    text = jobs.find(projects, name).yaml
    gr.Info(say("reused", name=name))
    return [text, *_settled(projects, text), _next(projects, name), name, "", gr.skip()]


def _group(shared: Shared, section: str, meaning: str, widgets: SimpleNamespace) -> None:
    """A group of settings, whose widgets are made when it is opened: hundreds would make the page slow."""
    with gr.Accordion(f"{section}: {meaning}" if meaning else section, open=False, elem_id=f"group_{section}") as group:

        @gr.render(inputs=widgets.yaml, triggers=[group.expand], show_progress="hidden")
        def fields(text: str) -> None:
            try:
                rows, tree = form_of(text or "")
            except StentorError:
                gr.Markdown(say("advanced_none"))
                return
            with gr.Column(elem_classes="stentor-settings"):
                for row in rows:
                    if row.section == section and not row.basic:
                        _listen(shared, _widget(row, shown(row, tree)), row.key, widgets)


def _listen(shared: Shared, widget: Any, key: str, widgets: SimpleNamespace) -> None:
    """Put what the widget holds into the run file. Not `input`: a text box sends that for keys alone, neither when
    something is pasted nor when something is deleted. What the page itself writes into it changes nothing."""
    inputs, outputs = [widgets.yaml, widget, widgets.open_file], [widgets.yaml, widgets.remarks, widget]
    shared.on(widget.change, partial(_edited, key=key), inputs, outputs, trigger_mode=LAST)


def _widget(row: FormField, value: Any) -> Any:
    """The widget of a row: label, help and choices are the schema's. Numbers are text, so that 1e-4 can be written,
    empty can mean the default, and a limit is given in the words of the reference."""
    common: dict[str, Any] = {"label": row.label, "info": row.help, "value": value, "interactive": True}
    if row.kind == "switch":
        return gr.Checkbox(**common)
    if row.kind == "choice":
        null = [("null", "null")] if row.optional else []
        return gr.Dropdown([*((o, o) for o in row.options), *null], **{**common, "value": value or "null"})
    return gr.Textbox(**common, lines=1 if row.kind != "yaml" or len(str(value)) < 60 else 3, max_lines=8)


def _edited(projects: Projects, text: str, value: Any, open_file: OpenRunFile, key: str) -> list[Any]:
    """The run file with one setting changed, and what there is to say of it; the value, too, where a choice was
    answered meanwhile and has written another into the page."""
    text = text or ""
    if not text.strip():  # the page fills its fields before its editor
        return [gr.skip()] * 3
    try:
        rows, tree = form_of(text)
        row = next((r for r in rows if r.key == key), None)
        if row is None or read(row, value) == value_of(row, tree):
            return [gr.skip(), _remarks(projects, text), gr.skip()]
        new, overwritten = open_file.edit(text, key, value, lambda latest: _with_setting(latest, key, value))
    except StentorError as error:
        return [gr.skip(), _line(str(error), "wrong"), gr.skip()]
    return [new, _remarks(projects, new), value if overwritten else gr.skip()]


def _settled(projects: Projects, text: str) -> list[Any]:
    """Notes on a run file, and its basic settings."""
    try:
        rows, tree = form_of(text)
        known = {row.key: row for row in rows}
        adapters = isinstance(tree.get("model"), dict) and tree["model"].get("lora") is not None
        there = {k: k in known and (k != "model.lora.rank" or adapters) for k in BASIC}
        fields = [gr.Textbox(shown(known[k], tree) if there[k] else "", visible=there[k]) for k in BASIC]
    except StentorError:
        fields = [gr.skip()] * len(BASIC)
    return [_remarks(projects, text), *fields]


def _remarks(projects: Projects, text: str) -> str:
    """Mistakes in a run file, line by line, as HTML."""
    if not text.strip():
        return _line(say("yaml_none"))
    try:
        checked(text, projects)
    except Mistakes as error:
        return render("mistakes", error.mistakes)
    except StentorError as error:
        return _line(str(error), "wrong")
    return _line(say("yaml_fine"), "fine")


def _plan(plan: dict[str, Any], number: int, count: int) -> str:
    """A plan as HTML: a small table, and what speaks against the start."""
    title = say("plan_stage", number=number, count=count, task=settings.title("task", plan["task"]))
    return render("plan", title if count > 1 else "", plans.table(plan), plans.warnings(plan))


def _line(text: str, kind: str = "") -> str:
    return render("line", text, kind)


def _next(projects: Projects, name: str) -> str:
    """A free name after one that is taken."""
    stem, _, last = name.rpartition("-")
    stem = stem if stem and last.isdigit() else name
    return settings.free_name(projects, stem)


def _some(text: str | None) -> str:
    if not text or not text.strip():
        raise gr.Error(say("yaml_none"), print_exception=False)
    return text
