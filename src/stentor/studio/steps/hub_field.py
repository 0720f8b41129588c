"""The data set of the Hub in step 3: one of the presets or a name that is typed, its language, split and hours."""

from typing import Any, NamedTuple

import gradio as gr

from stentor.errors import StentorError
from stentor.sources.hub_choice import HOURS, HubChoice, HubData, hub_data, languages_of, offered, preset_of, splits_of
from stentor.studio.steps.shared import Choice, labelled
from stentor.studio.texts import render, say


class HubField(NamedTuple):
    """The widgets: those that are read (text, language, split, hours), those that are written to, and what changes."""

    inputs: list[Any]
    outputs: list[Any]
    events: list[Any]


def hub_field() -> HubField:
    free: dict[str, Any] = {"allow_custom_value": True, "value": None}
    text = Choice([(say("hub_own"), ""), *offered()], **labelled("hub_data", info="hub_data_help"), **free)
    with gr.Row(visible=False, elem_id="hub_options") as options:
        language = Choice([], **labelled("hub_language"), **free)
        split = Choice([], **labelled("hub_split", info="hub_split_help"), **free)
        hours = gr.Number(HOURS, **labelled("hub_hours", info="hub_hours_help"))
    inputs, outputs = [text, language, split, hours], [options, language, split, gr.HTML(elem_id="hub_told")]
    events = [text.input, language.input, split.input, hours.submit, *(widget.blur for widget in inputs)]
    return HubField(inputs, outputs, events)


def hub_chosen(text: str | None, language: str | None, split: str | None, hours: float | None) -> HubChoice | None:
    """The choice that the widgets make; None for none."""
    return HubChoice(text.strip(), language or "", split or "", hours) if text and text.strip() else None


def hub_shown(chosen: HubChoice | None) -> tuple[HubData | None, list[Any]]:
    """The sources of what is chosen, None where it does not fit, and the widgets of `outputs`. Language and split are
    those of the data set; what the text says already is not asked for."""
    data, told, kind, named = None, "", "", None
    try:
        named = preset_of(chosen.text) if chosen else None
        data = hub_data(chosen) if chosen else None
    except StentorError as error:
        told, kind = str(error), "wrong"
    if data is not None:
        hours = data.train.get("first_hours")
        taken = say("hub_taken", name=data.name, hours=f"{hours:g}") if hours else say("hub_whole", name=data.name)
        told = " ".join([taken, *data.notes])
    return data, [
        gr.Row(visible=chosen is not None),
        gr.Dropdown(languages_of(named.key) if named else [], visible=named is not None and not named.language),
        gr.Dropdown(splits_of(named.key) if named else [], visible=named is None or not named.split),
        render("line", told, kind),
    ]
