"""A demo page: who speaks when."""

from typing import Any

import gradio as gr
from demo import DRAWN_RATE, launch, listen, load, page, polite, sound_input

from stentor.report import drawings

MODEL = load()
MOST_SPEAKERS = 20


def diarize(audio: str | None, speakers: float | None) -> tuple[str, list[list[Any]], str]:
    """A timeline of the speakers, their segments as a table, and the lines of an RTTM file."""
    with polite(audio):
        samples, rate = listen(audio, DRAWN_RATE)
        result = MODEL.diarize(samples, rate, speakers=int(speakers) if speakers else None)
    rows = [[s["speaker"], s["start"], s["end"]] for s in result.segments]
    return drawings.speakers(result.segments, samples, rate), rows, result.rttm("recording")


with page() as blocks:
    with gr.Row():
        with gr.Column():
            audio = sound_input("Conversation")
        with gr.Column():
            speakers = gr.Number(
                0,
                label="Number of speakers",
                info="0 where it is not known",
                precision=0,
                minimum=0,
                maximum=MOST_SPEAKERS,
            )
            button = gr.Button("Who speaks when?", variant="primary")
    drawing = gr.HTML()
    with gr.Tab("Table"):
        table = gr.Dataframe(
            headers=["speaker", "start (s)", "end (s)"], datatype=["str", "number", "number"], interactive=False
        )
    with gr.Tab("RTTM"):
        rttm = gr.Textbox(label="RTTM", lines=10, buttons=["copy"])
    button.click(diarize, [audio, speakers], [drawing, table, rttm], api_name="diarize")

if __name__ == "__main__":
    launch(blocks)
