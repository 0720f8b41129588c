"""Step 1: the phrases with their recorders, below them other phrases, uploads and long recordings. Elements of the page
do the work: speak.mjs over the routes of recorder.py, upload.mjs and phrases.mjs over those of receiving.py."""

import html
from typing import Any

import gradio as gr

from stentor.studio.projects import Projects
from stentor.studio.steps.shared import Shared, element
from stentor.studio.texts import say


def build(shared: Shared, tab: Any) -> None:
    """The rows of the chosen data set, and the parts below them."""
    first_step = f"<p>{html.escape(say('first_step'))}</p>"
    rows = gr.HTML(first_step, elem_id="speak", padding=False)
    parts = gr.HTML("", elem_id="bring", padding=False)

    def view(projects: Projects, name: str | None) -> list[str]:
        if name not in projects.datasets():
            return [first_step, ""]
        return [element(name, "stentor-speak"), element(name, "stentor-phrases", "stentor-upload", "stentor-long")]

    shared.on(shared.dataset.change, view, shared.dataset, [rows, parts])
