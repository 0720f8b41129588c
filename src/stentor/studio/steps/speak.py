"""Step 1: the phrases with their recorders. The page's own element does the work (page/speak.js, recorder.py)."""

import html
from typing import Any

import gradio as gr

from stentor.studio.projects import Projects
from stentor.studio.steps.shared import Shared, element, on
from stentor.studio.texts import say


def build(shared: Shared, tab: Any) -> None:
    """The rows of the chosen data set."""
    rows = gr.HTML(_rows(None), elem_id="speak", padding=False)

    def view(projects: Projects, name: str | None) -> str:
        return _rows(projects.dataset(name).name if name in projects.datasets() else None)

    on(shared, shared.dataset.change, view, shared.dataset, rows)


def _rows(name: str | None) -> str:
    if name is None:
        return f"<p>{html.escape(say('first_step'))}</p>"
    return element(name, "stentor-speak")
