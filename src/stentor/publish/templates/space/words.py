"""A demo page: speech to text, with the time of every word."""

from typing import Any

import gradio as gr
from demo import DRAWN_RATE, language_input, launch, listen, load, page, polite, sound_input

from stentor.inference.formats import to_srt
from stentor.report import drawings

MODEL = load()
HEADERS = ["word", "start (s)", "end (s)", "confidence"]


def words(audio: str | None, language: str | None) -> tuple[str, str, list[list[Any]], str]:
    """The transcript, its words drawn along the time, the same as a table, and subtitles (SRT)."""
    with polite(audio):
        samples, rate = listen(audio, DRAWN_RATE)
        result = MODEL.transcribe(samples, rate, language=language or None, words=True)
    rows = [[w["word"], w["start"], w["end"], w["confidence"]] for w in result.words]
    return result.text, drawings.words(result.words, samples, rate), rows, to_srt(result)


with page() as blocks:
    with gr.Row():
        with gr.Column():
            audio, language = sound_input("Speech"), language_input()
            button = gr.Button("Transcribe", variant="primary")
        text = gr.Textbox(label="Transcript", lines=6, buttons=["copy"])
    drawing = gr.HTML()
    with gr.Tab("Table"):
        table = gr.Dataframe(headers=HEADERS, datatype=["str", "number", "number", "number"], interactive=False)
    with gr.Tab("Subtitles"):
        subtitles = gr.Textbox(label="SubRip (.srt)", lines=10, buttons=["copy"])
    button.click(words, [audio, language], [text, drawing, table, subtitles], api_name="words")

if __name__ == "__main__":
    launch(blocks)
