"""Shared parts of the demo pages: the model, the limits, the incoming audio and the messages for errors.

`space.json` beside this file says which model is served and how. The token for a private model is the Space's secret
HF_TOKEN, which huggingface_hub reads from the environment; no file holds it.
"""

import html
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

import stentor
from stentor.audio.io import probe, read
from stentor.errors import StentorError, without_secrets
from stentor.report import drawings

FOLDER = Path(__file__).parent
FACTS: dict[str, Any] = json.loads((FOLDER / "space.json").read_text(encoding="utf-8"))
LIMITS: dict[str, int] = FACTS["limits"]
HIGHEST_RATE = 48000
"""Hz; sound with a higher rate is resampled as it is read."""
DRAWN_RATE = 16000
"""The same for sound that is drawn: the page sends it back."""
WAITING = 20
"""Requests in the queue; further ones are refused for now."""
KEPT = 3600
"""Seconds that recordings and answers stay on the machine."""
FONTS = ["ui-sans-serif", "system-ui", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
"""Fonts of the visitor's system: nothing is fetched from other hosts."""
THEME = gr.themes.Soft(font=FONTS, font_mono=["ui-monospace", "monospace"]).set(
    block_label_text_color="*body_text_color",
    block_title_text_color="*body_text_color",
    block_label_text_color_dark="*body_text_color",
    block_title_text_color_dark="*body_text_color",
    block_title_background_fill="transparent",
    block_label_background_fill="transparent",
    block_title_background_fill_dark="transparent",
    block_label_background_fill_dark="transparent",
    block_title_padding="0",
    block_title_text_weight="500",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
    button_primary_background_fill_dark="*primary_600",
    button_primary_background_fill_hover_dark="*primary_700",
    body_text_color_subdued="*neutral_500",
    body_text_color_subdued_dark="*neutral_300",
)
HEAD = f"<style>{drawings.style()}</style><script>{drawings.script()}</script>"
CSS = """
.gradio-container { max-width: 1100px !important; margin: 0 auto; }
.heading h1 { font-size: 1.7rem; margin: .4rem 0 .2rem; overflow-wrap: anywhere; }
body:not(.dark) { --neutral-400: var(--neutral-500); }
.gradio-container main :is(.download-link, .icon-button) { min-width: 24px; min-height: 24px; margin: 0; }
.gradio-container main .download-link .icon-button { width: 100%; height: 100%; }
.heading p { color: var(--body-text-color-subdued); margin: 0; }
"""


def load() -> Any:
    """The model of this Space. Ends the program with one sentence when it cannot be had."""
    try:
        return stentor.load(FOLDER / FACTS["model"] if FACTS["local"] else FACTS["model"])
    except StentorError as error:
        asked = FACTS["hub"] and not os.environ.get("HF_TOKEN")
        fix = f" If {' or '.join(FACTS['hub'])} is private, give this Space a secret HF_TOKEN that may read it."
        sys.exit(without_secrets(f"{error}{fix if asked else ''}"))


def listen(path: str | None, highest: int = HIGHEST_RATE) -> tuple[np.ndarray, int]:
    """The sound that was recorded or uploaded: float32 [samples], and its rate in Hz, `highest` at most."""
    if path is None:
        raise gr.Error("Record or upload some speech first.", print_exception=False)
    info = probe(path)
    if info.duration > LIMITS["seconds"]:
        raise gr.Error(
            f"The recording has {info.duration:.0f} s; this demo takes at most {LIMITS['seconds']} s.",
            print_exception=False,
        )
    rate = min(info.sample_rate, highest)
    return read(path, rate, 0.0, info.duration), rate


def text_within_limit(text: str | None, what: str) -> str:
    """The text without the white space around it; refused where it is longer than this demo takes."""
    text = (text or "").strip()
    if len(text) > LIMITS["characters"]:
        raise gr.Error(
            f"{what} has {len(text)} characters; this demo takes at most {LIMITS['characters']}.", print_exception=False
        )
    return text


@contextmanager
def polite(path: str | None = None) -> Iterator[None]:
    """Expected failures become a sentence on the page, without the place of the upload on this machine."""
    try:
        yield
    except StentorError as error:
        message = str(error).replace(path, Path(path).name) if path else str(error)
        raise gr.Error(html.escape(without_secrets(message)), print_exception=False) from None


def sound_input(label: str) -> gr.Audio:
    """The microphone, or a file."""
    return gr.Audio(sources=["microphone", "upload"], type="filepath", label=f"{label} (up to {LIMITS['seconds']} s)")


def language_input() -> gr.Dropdown:
    """One of the languages the model was trained on; not shown where there is no choice."""
    choices = [("not given", ""), *((code, code) for code in FACTS["languages"])]
    return gr.Dropdown(choices, value="", label="Language", visible=len(FACTS["languages"]) > 1)


@contextmanager
def page() -> Iterator[gr.Blocks]:
    """The page with its heading, to be filled."""
    with gr.Blocks(title=FACTS["title"], analytics_enabled=False, delete_cache=(KEPT, KEPT), fill_width=True) as blocks:
        gr.HTML(
            f"<h1>{html.escape(FACTS['title'])}</h1><p>{html.escape(FACTS['description'])}</p>", elem_classes="heading"
        )
        yield blocks


def launch(blocks: gr.Blocks) -> None:
    """Serve: one request at a time, the others wait. No file is served but what a request made."""
    blocks.queue(max_size=WAITING, default_concurrency_limit=1)
    blocks.launch(
        css=CSS,
        head=HEAD,
        theme=THEME,
        max_file_size=f"{LIMITS['megabytes']}mb",
        share=False,
        show_error=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        run_history=False,
    )
