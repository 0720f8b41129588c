"""Choices that are filled while the page is open. What the page sends is judged where it is used, and not by the
choices that this process remembers of the page: after a restart of the studio it remembers none, and an open page goes
on."""

from typing import Any

import gradio as gr
from gradio import component_meta

# Gradio writes a stub beside the module of every component, also where the package is installed.
_writes_stub = component_meta.create_or_modify_pyi
component_meta.create_or_modify_pyi = lambda *arguments: None
try:

    class Choice(gr.Dropdown):
        """One of a list, or none."""

        is_template = True

        def preprocess(self, payload: Any) -> str | None:
            return payload if isinstance(payload, str) else None

    class Several(gr.Dropdown):
        """Any number of a list."""

        is_template = True

        def preprocess(self, payload: Any) -> list[str]:
            return [name for name in payload if isinstance(name, str)] if isinstance(payload, list) else []

    class Names(gr.Radio):
        """One of a list that is seen whole, or none."""

        is_template = True
        preprocess = Choice.preprocess
finally:
    component_meta.create_or_modify_pyi = _writes_stub
