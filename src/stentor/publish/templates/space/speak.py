"""A demo page: text to speech, in the voice of a reference or as a description says."""

from typing import Any

import gradio as gr
import numpy as np
from demo import FACTS, LIMITS, language_input, launch, listen, load, page, polite, sound_input, text_within_limit

MODEL = load()
LONGEST_SEED = 2**31 - 1


def speak(
    text: str,
    reference: str | None,
    reference_text: str | None,
    instruct: str | None,
    language: str | None,
    speed: float,
    seed: float,
    saved: str | None = None,
) -> tuple[int, np.ndarray]:
    """The text, spoken."""
    text = text_within_limit(text, "The text")
    transcript = text_within_limit(reference_text, "The text of the reference")
    described = text_within_limit(instruct, "The description")
    if reference is not None and not transcript:
        raise gr.Error("Write down what is said in the reference.", print_exception=False)
    with polite(reference):
        voice: dict[str, Any] = {"voice": saved or None}
        if reference is not None:
            samples, rate = listen(reference)
            voice |= {"reference": samples, "reference_rate": rate, "reference_text": transcript}
        speech = MODEL.speak(
            text, **voice, instruct=described or None, language=language or None, speed=speed, seed=int(seed)
        )
    # As integers: Gradio scales floating point sound to its peak.
    return speech.rate, (np.clip(speech.audio, -1, 1) * 32767).astype(np.int16)


with page() as blocks:
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(label="Text", lines=4, max_length=LIMITS["characters"])
            language = language_input()
            with gr.Accordion("Voice", open=True):
                choices = [("none", ""), *((name, name) for name in MODEL.voices)]
                saved = gr.Dropdown(choices, value="", label="Saved voice", visible=len(choices) > 1)
                reference = sound_input("Reference")
                reference_text = gr.Textbox(label="What is said in it", max_length=LIMITS["characters"])
                instruct = gr.Textbox(
                    label="Or the voice in words", info=FACTS["instruct"], max_length=LIMITS["characters"]
                )
            with gr.Accordion("More", open=False):
                speed = gr.Slider(0.5, 2.0, 1.0, step=0.05, label="Speed")
                seed = gr.Number(0, label="Seed", precision=0, minimum=0, maximum=LONGEST_SEED)
            button = gr.Button("Speak", variant="primary")
        speech = gr.Audio(label="Speech", interactive=False, format="wav")
    button.click(
        speak, [text, reference, reference_text, instruct, language, speed, seed, saved], speech, api_name="speak"
    )

if __name__ == "__main__":
    launch(blocks)
