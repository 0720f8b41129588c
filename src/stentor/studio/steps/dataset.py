"""Steps 1 and 2, the recordings of a data set.

Step 1: the phrases with their recorders, below them other phrases, uploads and long recordings. Elements of the page do
the work: speak.mjs over the routes of recorder.py, upload.mjs and phrases.mjs over those of receiving.py.

Step 2: listen to what was recorded, correct it, remove it, divide it into training and held-out parts. The list itself
is page/check_list.mjs over the routes of review.py.
"""

import html

import gradio as gr

from stentor.studio import train_test_split
from stentor.studio.dataset import identity
from stentor.studio.dataset.prompts import language_of, languages
from stentor.studio.phrases import language_name
from stentor.studio.projects import DataSet, Projects
from stentor.studio.steps.shared import Shared, element, few_held_out, labelled, opened
from stentor.studio.texts import say

_AGAIN = "() => { document.querySelector('stentor-check')?.again?.(); }"
_SHOWN = """(name, before) =>
  [name, document.querySelector("#recordings stentor-check")?.getAttribute("dataset") ?? ""]"""
_CHANGED = "() => { document.dispatchEvent(new CustomEvent('stentor-changed')); }"
_REFRESH = "() => { document.querySelector('stentor-check')?.refresh?.(); }"


def build_identity(shared: Shared) -> None:
    """Name and language of the chosen data set, to be changed."""
    with gr.Accordion(say("identity"), open=False, visible=False, elem_id="identity") as part:
        with gr.Row(equal_height=True):
            name = gr.Textbox(label=say("new_name"), max_length=64, elem_id="identity_name")
            language = gr.Dropdown(languages(), label=say("language"), elem_id="identity_language")
        save = gr.Button(say("identity_save"), elem_id="identity_save")

    def shown(projects: Projects, chosen: str | None) -> list[object]:
        if chosen not in projects.datasets():
            return [gr.Accordion(visible=False), "", None]
        return [gr.Accordion(visible=True), chosen, language_of(projects.dataset(chosen))]

    def saved(projects: Projects, chosen: str | None, to: str, code: str | None) -> list[object]:
        dataset = opened(projects, chosen)
        said = []
        if to.strip() != dataset.name:  # first: it is refused more often, and then nothing has changed
            dataset = identity.rename(projects, dataset.name, to)
            said.append(say("identity_renamed", name=dataset.name))
        if code in dict(map(reversed, languages())) and code != language_of(dataset):
            count = identity.change_language(projects, dataset, str(code))
            said.append(say("identity_language", language=language_name(code), count=count))
        gr.Info(html.escape(" ".join(said) or say("identity_same")))
        return [gr.Dropdown(projects.datasets(), value=dataset.name), dataset.name]

    shared.on([shared.page.load, shared.shown], shown, shared.dataset, [part, name, language])
    for event in shared.on([save.click, name.submit], saved, [shared.dataset, name, language], [shared.dataset, name]):
        event.then(None, None, None, js=_CHANGED)


def build_speak(shared: Shared, tab: gr.Tab) -> None:
    """The rows of the chosen data set, and the parts below them."""
    first_step = f"<p>{html.escape(say('first_step'))}</p>"
    rows = gr.HTML(first_step, elem_id="speak", padding=False)
    parts = gr.HTML("", elem_id="bring", padding=False)

    def view(projects: Projects, name: str | None) -> list[str]:
        if name not in projects.datasets():
            return [first_step, ""]
        return [element(name, "stentor-speak"), element(name, "stentor-phrases", "stentor-upload", "stentor-long")]

    shared.on(shared.shown, view, shared.dataset, [rows, parts])


def build_check(shared: Shared, tab: gr.Tab) -> None:
    """The list of recordings, and the division."""
    gr.Markdown(say("check_intro"))
    listed = gr.HTML("", elem_id="recordings", padding=False)
    with gr.Column(elem_id="division"):
        gr.Markdown(f"## {say('division')}\n{say('division_help')}")
        with gr.Row(equal_height=False):
            share = gr.Slider(5, 50, 100 * train_test_split.SHARE, step=5, **labelled("share"), min_width=220)
            by = gr.Radio(
                [(say("by_text"), "text"), (say("by_speaker"), "speaker")],
                value=train_test_split.BY[0],
                **labelled("divide_by", info="divide_by_help"),
                min_width=220,
            )
        with gr.Row(equal_height=False):
            split = gr.Button(say("split"), elem_id="split", min_width=160, scale=0)
            divided = gr.Markdown(elem_id="divided")

    # The data set of the list that the page shows now: sent again, it would be rebuilt while someone uses it.
    seen = gr.Textbox("", visible="hidden", elem_id="seen")

    def shown(projects: Projects, name: str | None, before: str) -> list[object]:
        if name not in projects.datasets():
            return ["", 100 * train_test_split.SHARE, train_test_split.BY[0], ""]
        dataset = projects.dataset(name)
        part, kind = dataset.division()
        page = element(name, "stentor-check")
        return [gr.skip() if name == before else page, 100 * part, kind, _divided(dataset)]

    def parted(projects: Projects, name: str | None, percent: float, kind: str) -> str:
        dataset = opened(projects, name)
        dataset.split(float(percent) / 100, str(kind))
        return _divided(dataset)

    events = [shared.page.load, shared.shown, tab.select]
    for event in shared.on(events, shown, [shared.dataset, seen], [listed, share, by, divided], js=_SHOWN):
        event.then(None, None, None, js=_AGAIN)
    for event in shared.on(split.click, parted, [shared.dataset, share, by], divided):
        event.then(None, None, None, js=_REFRESH)


def _divided(dataset: DataSet) -> str:
    sides = list(dataset.sides().values())
    if not sides:
        return say("split_not_yet")
    done = say("split_done", count=sides.count("train"), held_out=sides.count("held_out"))
    return f"{done} {few_held_out(dataset)}".strip()
