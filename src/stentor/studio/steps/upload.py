"""Step 1, below the rows: other phrases, uploads, long recordings. The page's own elements do the work: upload.mjs and
phrases.mjs over the routes of receiving.py."""

from typing import Any

import gradio as gr

from stentor.studio.projects import Projects
from stentor.studio.steps.shared import Shared, element, on

PARTS = ("stentor-phrases", "stentor-upload", "stentor-long")


def build(shared: Shared, tab: Any) -> None:
    """The parts for the chosen data set."""
    shown = gr.HTML("", elem_id="bring", padding=False)

    def view(projects: Projects, name: str | None) -> str:
        return parts(projects.dataset(name).name) if name in projects.datasets() else ""

    on(shared, shared.dataset.change, view, shared.dataset, shown)


def parts(name: str) -> str:
    """The elements of a data set, as HTML."""
    return element(name, *PARTS)
