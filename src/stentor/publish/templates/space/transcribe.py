"""A demo page: speech to text."""

import gradio as gr
from demo import language_input, launch, listen, load, page, polite, sound_input

MODEL = load()


def transcribe(audio: str | None, language: str | None) -> str:
    """Transcript of the recording."""
    with polite(audio):
        samples, rate = listen(audio)
        return MODEL.transcribe(samples, rate, language=language or None, words=False).text


with page() as blocks:
    with gr.Row():
        with gr.Column():
            audio, language = sound_input("Speech"), language_input()
            button = gr.Button("Transcribe", variant="primary")
        text = gr.Textbox(label="Transcript", lines=6, buttons=["copy"])
    button.click(transcribe, [audio, language], text, api_name="transcribe")

if __name__ == "__main__":
    launch(blocks)
