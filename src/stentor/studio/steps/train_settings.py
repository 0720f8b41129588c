"""The settings of step 3 as widgets: what they show, what a change of them does to the run file, what is wrong."""

import importlib.util
import json
import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import gradio as gr

from stentor.config.document import Mistakes
from stentor.errors import StentorError
from stentor.studio.projects import Projects
from stentor.studio.runs import settings
from stentor.studio.runs.form import BASIC, Basic, FormField, basics, form_of, plain, shown
from stentor.studio.runs.open_run_file import OpenRunFile, Rewritten
from stentor.studio.runs.path_policy import checked
from stentor.studio.steps.shared import Shared, labelled, literal
from stentor.studio.texts import for_page, render, say, texts

_WRITE = """(sent, yaml, ...fields) => {
  const page = (window.stentorForm ??= {number: 0, fields: 0, text: ""}), same = {__type__: "update"};
  const answer = sent ? JSON.parse(sent) : {number: 0, was: "", fields: []};
  const typed = ![answer.was, page.text].some((text) => text.trim() === (yaml ?? "").trim());
  const takes = answer.number > page.number && !typed, fills = answer.number > page.fields;
  if (takes) [page.number, page.text] = [answer.number, answer.text];
  if (answer.fields.length && fills) page.fields = answer.number;
  const value = (now, change) => (fills && change && [null, now].includes(change[0]) ? change[1] : same);
  const values = fields.map((now, i) => value(now, answer.fields[i]));
  return [...(takes ? [answer.number, answer.text] : [same, same]), ...values];
}"""
"""Put an answer into the page, but for what the person has typed since the event that it answers."""


LAST = "always_last"
"""Event option: of events that come while one is answered, the last is answered as well."""


def basic_widget(basic: Basic) -> Any:
    """The widget of a basic setting. Its limits depend on the model, and are shown when there is one."""
    label = labelled(f"basic_{basic.name}")
    if basic.on is True:
        return gr.Textbox(**label, min_width=200, visible=False)
    there = importlib.util.find_spec(basic.name) is not None
    return gr.Checkbox(**label, min_width=200, visible=False, interactive=there)


def page_of(w: SimpleNamespace) -> list[Any]:
    """The parts of a run file that the page shows, as inputs; `answer_of`: the answer about one."""
    return [w.open_file, w.number, w.yaml, *w.basics, w.name]


def answer_of(w: SimpleNamespace) -> list[Any]:
    return [w.sent, w.proposals, *w.basics]


def take_over(answers: Sequence[Any], sent: gr.Textbox, w: SimpleNamespace) -> None:
    page = [w.yaml, *w.basics, w.name]
    for answered in answers:
        done = answered.then(None, [sent, *page], [w.number, *page], js=_WRITE, api_visibility="private")
        if sent is w.sent:
            done.then(time.monotonic, None, w.drawn, api_visibility="private", show_progress="hidden")


def told(
    open_file: OpenRunFile,
    was: str,
    new: Rewritten | None,
    fields: Sequence[Any],
    name: str = "",
    note: str = "",
    fresh: bool = False,
) -> list[Any]:
    """The outputs of `answer_of` for a run file; nothing for none. `was` and `fields` (with the name of the
    run) are what the page showed, `name` is another name; with `fresh` all is written, also where a value was wrong."""
    if new is None:
        return [gr.skip()] * (2 + len(BASIC))
    there = basics(new.text)
    open_file.wrong = {} if fresh else {key: why for key, why in open_file.wrong.items() if key in there}
    tree = plain(new.text) if there else {}
    *values, shown_name = fields
    sent: list[Any] = [*[None] * len(BASIC), name and [None if fresh else shown_name, name]]
    updates: list[Any] = [gr.skip()] * len(BASIC)
    for i, (basic, value) in enumerate(zip(BASIC, values, strict=True)):
        row = there.get(basic.key)
        if row is None and new.text.strip() and not there:
            continue  # the file is no YAML: what the fields show stays
        updates[i] = gr.update(visible=row is not None, **(_said(open_file, row) if row else {}))
        if basic.key not in open_file.wrong:
            value_now = shown(row, tree) if row else ("" if basic.on is True else False)
            sent[i] = [None if fresh else value, value_now]
            open_file.note({basic.key: value_now})
    answer = {"number": open_file.number, "text": new.text, "was": was, "fields": sent}
    return [json.dumps(answer), line(note or _note(new)), *updates]


def _note(written: Rewritten) -> str:
    """Sentences on the settings: kept, proposed again, not used."""

    def named(settings: Sequence[tuple[str, str, str]], how: str) -> str:
        none = say("setting_none")
        return ", ".join(
            say(how, name=label_of(k), value=v or none, other=o or none) if v or o else label_of(k)
            for k, v, o in settings
        )

    yours = say("settings_yours", which=named(written.yours, "setting_yours")) if written.yours else ""
    fresh = say("settings_new", which=named(written.fresh, "setting_new")) if written.fresh else ""
    unused = say("settings_unused", which=", ".join(map(label_of, written.unused))) if written.unused else ""
    return " ".join(filter(None, (yours, fresh, unused)))


def label_of(key: str) -> str:
    return next((say(f"basic_{basic.name}") for basic in BASIC if basic.key == key), key)


def by_key(fields: Sequence[Any]) -> dict[str, Any]:
    return {basic.key: value for basic, value in zip(BASIC, fields)}  # the name of the run comes after them


def group(shared: Shared, section: str, meaning: str, w: SimpleNamespace) -> None:
    """A group of settings, whose widgets are made while it is open: hundreds would make the page slow. An answer to a
    choice makes them again."""
    title = f"{section}: {meaning}" if meaning else section
    with gr.Accordion(title, open=False, elem_id=f"group_{section}") as made:
        is_open = gr.State(False)
        for event, value in ((made.expand, True), (made.collapse, False)):
            event(lambda value=value: value, None, is_open, api_visibility="private", show_progress="hidden")

        @gr.render(inputs=[w.yaml, is_open], triggers=[is_open.change, w.drawn.change], show_progress="hidden")
        def fields(text: str, is_open: bool) -> None:
            try:
                rows, tree = form_of(text or "") if is_open else ([], {})
            except StentorError:
                gr.Markdown(say("advanced_none"))
                return
            with gr.Column(elem_classes="stentor-settings"):
                for row in rows:
                    if row.section == section and not row.basic:
                        listen(shared, _widget(row, shown(row, tree)), row.key, w)


def listen(shared: Shared, widget: Any, key: str, w: SimpleNamespace) -> None:
    """Put what the widget holds into the run file. Not `input`: a text box sends that for keys alone, neither when
    something is pasted nor when something is deleted. What the page itself writes into it changes nothing."""
    inputs, outputs = [w.open_file, w.number, w.yaml, w.name, widget], [w.changed, widget, w.remarks, w.start]
    take_over(shared.on(widget.change, partial(_edited, key=key), inputs, outputs, trigger_mode=LAST), w.changed, w)


def _widget(row: FormField, value: Any) -> Any:
    """The widget of a row: label, help and choices are the schema's. Numbers are text, so that 1e-4 can be written,
    empty can mean the default, and a limit is given in the words of the reference."""
    common: dict[str, Any] = {"label": row.label, "info": literal(row.help), "value": value, "interactive": True}
    if row.kind == "switch":
        return gr.Checkbox(**common)
    if row.kind == "choice":
        null = [("null", "null")] if row.optional else []
        return gr.Dropdown([*((o, o) for o in row.options), *null], **{**common, "value": value or "null"})
    return gr.Textbox(**common, lines=1 if row.kind != "yaml" or len(str(value)) < 60 else 3, max_lines=8)


def _said(open_file: OpenRunFile, row: FormField) -> dict[str, Any]:
    """The line at a field: the mistake in its value, or its help and limits."""
    if why := open_file.wrong.get(row.key):
        return {"info": literal(why), "elem_classes": ["wrong"]}
    help, missing = row.help, ""
    if row.basic and (key := f"basic_{row.basic.name}_help") in texts():
        limits = "" if row.kind == "switch" else say("may_be", what=row.may_be.removesuffix(" or null"))
        help = f"{say(key)} {limits}"
    if row.basic and row.basic.on is not True and importlib.util.find_spec(row.basic.name) is None:
        missing = say("not_installed")
    return {"info": literal(f"{help} {missing}".strip()), "elem_classes": []}


def _edited(
    projects: Projects, open_file: OpenRunFile, number: int, text: str, name: str, value: Any, key: str
) -> list[Any]:
    """The run file with one setting changed, or what is wrong with its value."""
    if not (text or "").strip():  # the page fills its fields before its editor
        return [gr.skip()] * 4
    before = open_file.wrong.get(key)
    new = open_file.read(number, text, {key: value})
    widget = gr.skip()
    if open_file.wrong.get(key) != before:
        row = next(row for row in form_of(text)[0] if row.key == key)
        widget = gr.update(**_said(open_file, row))
    if new != text:  # what there is to say of it follows its change
        sent = json.dumps({"number": open_file.number, "text": new, "was": text, "fields": []})
        return [sent, widget, gr.skip(), gr.skip()]
    return [gr.skip(), widget, *standing(projects, open_file, text, name)]


def settled(projects: Projects, open_file: OpenRunFile, number: int, text: str, *fields: Any) -> list[Any]:
    """The basic settings of a run file that was edited by hand."""
    meant = open_file.send(open_file.read(number, text or "", by_key(fields)))
    return told(open_file, text or "", Rewritten(meant), fields)


def standing(projects: Projects, open_file: OpenRunFile, text: str, name: str) -> list[Any]:
    """Mistakes in the fields, the run file and the name, as HTML; and the button that starts, which is off
    then."""
    said = [line(f"{label_of(key)}: {why}", "wrong") for key, why in open_file.wrong.items()]
    try:
        if not (text or "").strip():
            raise StentorError(say("yaml_none"))
        checked(text, projects)
        settings.check_name(projects, name or "")
    except Mistakes as error:
        said.append(render("mistakes", error.mistakes))
    except StentorError as error:
        said.append(line(str(error), "wrong"))
    return ["".join(said) or line(say("yaml_fine"), "fine"), gr.Button(interactive=not said)]


def line(text: str, kind: str = "", away: bool = False) -> str:
    return render("line", for_page(text), kind) + (render("line", say("hub_away"), "away") if away else "")
