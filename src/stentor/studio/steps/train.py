"""Step 3: what to train, the run file that comes of it, what it needs, and the start. What becomes of it is in runs.py.

The run file in the editor is the whole truth. Choices write it anew; every setting, basic or not, is read from it and
changed in it; what a person types there counts. So there is one list of settings, the config's, and nothing to get out
of step.
"""

from __future__ import annotations

import html
from functools import partial
from typing import Any

import gradio as gr

from stentor.config.document import Mistakes
from stentor.errors import StentorError
from stentor.studio.projects import Projects
from stentor.studio.runs import jobs, plans, settings
from stentor.studio.runs.form import BASIC, FormField, changed, form, form_of, read, sections, shown, value_of
from stentor.studio.runs.path_policy import checked
from stentor.studio.runs.settings import FULL, LORA, OWN
from stentor.studio.runs.try_model import MODEL_CACHE
from stentor.studio.steps.choices import Choice
from stentor.studio.steps.shared import Shared, on
from stentor.studio.texts import say

_IDS = {
    "train.epochs": "basic_epochs",
    "optim.lr": "basic_lr",
    "data.max_items": "basic_batch",
    "model.lora.rank": "basic_rank",
}
_SCROLL = "() => document.querySelector('#yaml')?.scrollIntoView({behavior: 'smooth', block: 'center'})"


def build(shared: Shared, tab: gr.Tab) -> None:
    """Choices, settings, run file, plan and start."""
    rows = {row.key: row for row in form("transcribe", "whisper")}
    gr.Markdown(say("train_intro"))
    facts = gr.HTML(elem_id="train_facts")
    # Lists follow one another: what is chosen is checked by `choose`, not against a list that has just changed.
    with gr.Row():
        task = Choice(settings.tasks(), value="transcribe", label=say("task"), elem_id="task", min_width=280)
        model = Choice([], label=say("model"), elem_id="model", scale=2, min_width=280)
    about = gr.HTML(elem_id="model_about")
    with gr.Row(visible=False) as other:
        family = Choice([], label=say("family"), elem_id="family")
        own = gr.Textbox(label=say("own"), info=say("own_help"), max_length=300, elem_id="own", scale=2)
    ways = [(say("method_full"), FULL), (say("method_lora"), LORA)]
    method = gr.Radio(ways, value=FULL, label=say("method"), elem_id="method")
    with gr.Row(elem_id="basic"):
        basics = [
            gr.Textbox(label=rows[key].label, info=rows[key].help, elem_id=_IDS[key], min_width=200) for key in BASIC
        ]
    yaml = gr.Code(
        label=say("yaml"), language="yaml", interactive=True, render=False, elem_id="yaml", lines=10, max_lines=24
    )
    said = gr.HTML(elem_id="yaml_said", render=False)
    with gr.Accordion(say("advanced"), open=False, elem_id="advanced"):
        gr.Markdown(say("advanced_help"))
        for section, meaning in sections().items():
            _group(shared, section, meaning, yaml, said)
    said.render()
    with gr.Row(equal_height=True):
        name = gr.Textbox(label=say("run_name"), max_length=64, elem_id="run_name", scale=2, min_width=240)
        plan = gr.Button(say("plan"), elem_id="plan", min_width=160)
        start = gr.Button(say("start"), variant="primary", elem_id="start", min_width=160)
    needs = gr.HTML(elem_id="plan_result")
    yaml.render()
    make = gr.Button(say("make_yaml"), elem_id="make", size="sm")
    command = gr.Code(label=say("command"), language="shell", interactive=False, elem_id="command", lines=1)
    written_for = gr.State(())
    """The choices that the run file was written for: it is not written again while they stay."""
    retried = gr.State("")
    """The run whose settings were taken over, if any."""

    def choose(
        projects: Projects,
        dataset: str | None,
        what: str,
        choice: str | None,
        kind: str | None,
        named: str | None,
        how: str,
        text: str,
        before: tuple[str, ...],
        anew: bool = False,
        method_too: bool = False,
    ) -> list[Any]:
        """All that follows from the choices. The run file is written where one has changed, or `anew`."""
        try:
            have = settings.facts(projects.dataset(dataset)) if dataset else None
        except StentorError as error:
            return [_line(str(error)), *[gr.skip()] * (len(shows) - 1)]
        offered = settings.tasks(have)
        what = what if what in dict(map(reversed, offered)) else offered[0][1]
        listed = settings.models(what, projects)
        known = dict(zip(("dataset", "task", "choice", "kind", "named", "how"), before, strict=False))
        if choice not in dict(map(reversed, listed)) or what != known.get("task", what):
            choice = settings.first(what)
        kinds = settings.pretrained_families(what)
        kind = kind if kind in dict(map(reversed, kinds)) else (kinds[0][1] if kinds else None)
        now = (str(dataset), what, str(choice), str(kind) if choice == OWN else "", named or "")
        methods, tree = (FULL, LORA), None
        try:
            picked = settings.chosen(str(choice), what, projects, kind, named)
            methods, line = picked.methods, picked.help
            if not before or now[1:] != before[1:-1]:
                how = picked.default
            elif not method_too:
                how = before[-1]  # the page may not have shown yet what was proposed
            how = how if how in methods else methods[0]
            if dataset and (anew or (*now, how) != before or not text.strip()):
                tree = settings.start(what, picked, how, projects.dataset(dataset))
        except StentorError as error:
            line = str(error)
        train = "" if have is None else say("train_hours", train=have.records, time=plans.duration(have.hours * 3600))
        written = "" if tree is None else settings.written(tree)
        # What a person has just typed is left alone where no choice has changed.
        new = [
            *_settled(projects, written),
            written,
            settings.run_name(projects, dataset, str(choice), named),
            (*now, how),
        ]
        return [
            _line(train),
            gr.Dropdown(offered, value=what),
            gr.Dropdown(listed, value=choice),
            _line(line),
            gr.Row(visible=choice == OWN),
            gr.Dropdown(kinds, value=kind),
            gr.Radio([way for way in ways if way[1] in methods], value=how, visible=len(methods) > 1),
            *([gr.skip()] * len(new) if tree is None else new),
        ]

    choices = [shared.dataset, task, model, family, own, method, yaml, written_for]
    shows = [facts, task, model, about, other, family, method, said, *basics, yaml, name, written_for]
    # One listener for all, so that they follow each other.
    events = [
        tab.select,
        shared.dataset.change,
        task.input,
        model.input,
        family.input,
        own.submit,
        own.blur,
        shared.started.change,
    ]
    on(shared, partial(gr.on, events), choose, choices, shows, trigger_mode="always_last")
    on(shared, method.input, partial(choose, method_too=True), choices, shows, trigger_mode="always_last")
    on(shared, make.click, partial(choose, anew=True, method_too=True), choices, shows, trigger_mode="always_last")
    make.click(lambda: "", None, retried, api_visibility="private", show_progress="hidden")

    on(
        shared,
        yaml.change,
        lambda projects, text: _remarks(projects, text or ""),
        yaml,
        said,
        trigger_mode="always_last",
    )
    on(shared, yaml.blur, lambda projects, text: _settled(projects, text or "")[1:], yaml, basics)
    for key, widget in zip(BASIC, basics, strict=True):
        _listen(shared, widget, key, yaml, said)
    on(
        shared,
        name.change,
        lambda projects, value: settings.command(projects, value or ""),
        name,
        command,
        trigger_mode="always_last",
    )

    def planned(projects: Projects, text: str) -> Any:
        yield _line(say("plan_working"), "working")
        MODEL_CACHE.keep_only()  # as at the start: it is the run's memory that is tried
        try:
            stages = plans.plan(projects, _some(text))
        except StentorError as error:
            yield _line(str(error), "wrong")
            return
        yield "".join(_plan(one, number, len(stages)) for number, one in enumerate(stages, 1))

    on(shared, plan.click, planned, yaml, needs, trigger_mode="once", concurrency_limit=1, concurrency_id="plan")

    def begin(projects: Projects, text: str, as_name: str, of: str) -> list[Any]:
        text = _some(text)
        for dataset in map(projects.dataset, projects.datasets()):
            if f"{dataset.folder}/" in text:
                dataset.parts()  # recordings that came since the file was written are divided as well
        MODEL_CACHE.keep_only()  # what was tried gives its memory to the training
        job = jobs.start(projects, text, as_name.strip(), retry_of=of or None)
        gr.Info(say("started", name=job.name))
        return [job.name, _next(projects, job.name), ""]

    on(
        shared,
        start.click,
        begin,
        [yaml, name, retried],
        [shared.started, name, retried],
        trigger_mode="once",
        concurrency_limit=None,
    )

    def reused(projects: Projects, which: str) -> list[Any]:
        if not which:
            return [gr.skip()] * (6 + len(basics))
        text = jobs.find(projects, which).yaml
        gr.Info(say("reused", name=which))
        return [text, *_settled(projects, text), _next(projects, which), which, "", gr.skip()]

    on(shared, shared.again.change, reused, shared.again, [yaml, said, *basics, name, retried, shared.again, needs])
    shared.again.change(None, js=_SCROLL, api_visibility="private")


def _group(shared: Shared, section: str, meaning: str, yaml: Any, said: Any) -> None:
    """A group of settings, whose widgets are made when it is opened: hundreds would make the page slow."""
    with gr.Accordion(f"{section}: {meaning}" if meaning else section, open=False, elem_id=f"group_{section}") as group:

        @gr.render(inputs=yaml, triggers=[group.expand], show_progress="hidden")
        def fields(text: str) -> None:
            try:
                rows, tree = form_of(text or "")
            except StentorError:
                gr.Markdown(say("advanced_none"))
                return
            with gr.Column(elem_classes="stentor-settings"):
                for row in rows:
                    if row.section == section and not row.basic:
                        _listen(shared, _widget(row, shown(row, tree)), row.key, yaml, said)


def _listen(shared: Shared, widget: Any, key: str, yaml: Any, said: Any) -> None:
    """Put what the widget holds into the run file. Not `input`: a text box sends that for keys alone, neither when
    something is pasted nor when something is deleted. What the page itself writes into it changes nothing."""
    on(shared, widget.change, partial(_edited, key=key), [yaml, widget], [yaml, said], trigger_mode="always_last")


def _widget(row: FormField, value: Any) -> Any:
    """The widget of a row: label, help and choices are the schema's. Numbers are text, so that 1e-4 can be written,
    empty can mean the default, and a limit is told in the words of the reference."""
    common: dict[str, Any] = {"label": row.label, "info": row.help, "value": value, "interactive": True}
    if row.kind == "switch":
        return gr.Checkbox(**common)
    if row.kind == "choice":
        null = [("null", "null")] if row.optional else []
        return gr.Dropdown([*((o, o) for o in row.options), *null], **{**common, "value": value or "null"})
    return gr.Textbox(**common, lines=1 if row.kind != "yaml" or len(str(value)) < 60 else 3, max_lines=8)


def _edited(projects: Projects, text: str, value: Any, key: str) -> list[Any]:
    """The run file with one setting changed, and what there is to say of it."""
    text = text or ""
    try:
        rows, tree = form_of(text)
        row = next((r for r in rows if r.key == key), None)
        if row is None or read(row, value) == value_of(row, tree):
            return [gr.skip(), _remarks(projects, text)]
        new = changed(text, row, value)
    except StentorError as error:
        return [gr.skip(), _line(str(error), "wrong")]
    return [new, _remarks(projects, new)]


def _settled(projects: Projects, text: str) -> list[Any]:
    """What is to be said of a run file, and the basic settings as it has them."""
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
    """What is wrong with a run file, line by line, as HTML."""
    if not text.strip():
        return _line(say("yaml_none"))
    try:
        checked(text, projects)
    except Mistakes as error:
        items = "".join(
            f"<li><b>{html.escape(say('yaml_line', line=m.place.line))}</b> {html.escape(m.text)}</li>"
            for m in error.mistakes
        )
        return f'<div class="wrong"><p>{html.escape(say("yaml_wrong"))}</p><ul>{items}</ul></div>'
    except StentorError as error:
        return _line(str(error), "wrong")
    return _line(say("yaml_fine"), "fine")


def _plan(found: dict[str, Any], number: int, count: int) -> str:
    """A plan as HTML: a small table, and what speaks against the start."""
    title = say("plan_stage", number=number, count=count, task=settings.title("task", found["task"]))
    head = f"<h4>{html.escape(title)}</h4>" if count > 1 else ""
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in plans.table(found))
    notes = "".join(f"<li>{html.escape(w)}</li>" for w in plans.warnings(found))
    after = f'<p>{html.escape(say("plan_notes"))}</p><ul class="notes">{notes}</ul>' if notes else ""
    return f"{head}<table>{rows}</table>{after or _line(say('plan_fine'), 'fine')}"


def _line(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{html.escape(text)}</p>' if text else ""


def _next(projects: Projects, name: str) -> str:
    """A free name after one that is taken."""
    stem, _, last = name.rpartition("-")
    stem = stem if stem and last.isdigit() else name
    return settings.free_name(projects, stem)


def _some(text: str | None) -> str:
    if not text or not text.strip():
        raise gr.Error(say("yaml_none"), print_exception=False)
    return text
