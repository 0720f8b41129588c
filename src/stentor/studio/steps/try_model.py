"""Step 4: try the model that was trained, beside the one that it came from."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import gradio as gr

from stentor.report import drawings
from stentor.studio.projects import DataSet, Projects
from stentor.studio.runs import try_model, try_model_html
from stentor.studio.runs.try_model import MODEL_CACHE, TrialClip
from stentor.studio.steps.choices import Choice, Names
from stentor.studio.steps.shared import Shared, on
from stentor.studio.texts import say

HEARD = ("clip", "held_out")
"""What a model may listen to."""
VOICES = ("own", "described", "taken", "copied")
"""Whose voice a model may speak in: its own, one that is described, that of a recording or of a clip."""
CLIPS, RECORDINGS = ("clip", "copied"), ("held_out", "taken")
"""Of both, those from a clip of the person, and from a recording of the data set."""
MOST_SEED = 2**31 - 1


def build(shared: Shared, tab: gr.Tab) -> None:
    """Choose a run, give it a clip or a text, see or hear the answers."""
    shared.page.load(None, js=f"() => {{ {drawings.script()} }}")
    gr.Markdown(say("try_intro"))
    with gr.Row(equal_height=True):
        with gr.Column(min_width=300):
            run = Choice([], label=say("try_run"), elem_id="try_run")
        with gr.Column(min_width=300):
            note = gr.HTML(elem_id="try_about")
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(
                label=say("try_text"), lines=3, max_length=try_model.MOST_CHARACTERS, visible=False, elem_id="try_text"
            )
            source = Names([], label=say("try_from"), elem_id="try_from")
            described = gr.Textbox(label=say("try_described"), max_length=200, visible=False, elem_id="try_described")
        with gr.Column():
            # No `format`: Gradio would hand every other file to FFmpeg before its first bytes are looked at.
            clip = gr.Audio(
                label=say("try_clip"),
                type="filepath",
                sources=["microphone", "upload"],
                editable=False,
                buttons=[],
                elem_id="clip",
            )
            held = Choice([], label=say("try_held"), visible=False, elem_id="try_held")
            player = gr.HTML(visible=False, elem_id="try_player", padding=False)
            said = gr.Textbox(label=say("try_said"), max_length=try_model.MOST_CHARACTERS, elem_id="try_said")
    with gr.Row():
        go = gr.Button(say("try_go"), variant="primary", elem_id="try")
        seed = gr.Number(
            0, label=say("try_seed"), precision=0, minimum=0, maximum=MOST_SEED, visible=False, elem_id="try_seed"
        )
    answers = gr.HTML(elem_id="answers", padding=False)
    gr.HTML(f"<style>{drawings.style()}</style>", visible="hidden")
    form = [note, source, text, described, clip, held, player, said, go, seed]

    def known(projects: Projects, value: str | None) -> Any:
        found = try_model.runs(projects)
        return gr.Dropdown(found, value=value if value in found else (found[0] if found else None))

    def chosen(
        projects: Projects, name: str | None, at: str | None, dataset: str | None, given: str | None
    ) -> list[Any]:
        """The form as the run's task needs it; what does not fit any more is emptied."""
        if not name or name not in try_model.runs(projects):
            return [gr.skip()] * len(form)
        tried = try_model.trial(projects, name)
        MODEL_CACHE.keep_only(tried.original, tried.export)
        return _form(projects, tried, at, dataset, given)

    def shown(projects: Projects, at: str | None, dataset: str | None, id: str | None) -> Any:
        return _player(_dataset(projects, dataset), id if at in RECORDINGS else None)

    def answered(
        projects: Projects,
        name: str | None,
        at: str | None,
        dataset: str | None,
        id: str | None,
        path: str | None,
        told: str | None,
        words: str | None,
        voice: str | None,
        number: float | None,
    ) -> Iterator[str]:
        if not name:
            raise gr.Error(say("try_no_run"), print_exception=False)
        tried, found = try_model.trial(projects, name), _dataset(projects, dataset)
        language = found.about.get("language") if found is not None else None
        where = try_model.device(projects)
        speaking = tried.task == "speak"
        limits = (try_model.VOICE_RATE, try_model.LONGEST_VOICE) if speaking else (try_model.RATE, try_model.LONGEST)
        heard: TrialClip | None = None
        if at in RECORDINGS:
            if found is None or not id:
                raise gr.Error(say("try_none"), print_exception=False)
            heard = try_model.recorded(found, id, *limits)
        elif at in CLIPS:
            if not path:
                raise gr.Error(say("try_none"), print_exception=False)
            heard = try_model.uploaded(path, *limits)
            heard.text = (told or "").strip() if tried.task != "diarize" else ""
        done: list[try_model.ModelAnswer] = []
        if speaking:
            described = (voice or "") if at == "described" else ""
            asked = try_model.speak(
                MODEL_CACHE, tried, words or "", heard, described, language, int(number or 0), where
            )
            yield try_model_html.spoken(tried, done)
            for answer in asked:
                done.append(answer)
                yield try_model_html.spoken(tried, done)
        elif heard is not None:
            yield try_model_html.listened(tried, heard, done)
            for answer in try_model.listen(MODEL_CACHE, tried, heard, language, where):
                done.append(answer)
                yield try_model_html.listened(tried, heard, done)

    pick = {"inputs": [run, source, shared.dataset, held], "outputs": form}
    for event in (tab.select, shared.changed.click, shared.page.load):
        on(shared, event, known, run, run)
    for event in (run.change, source.input, shared.dataset.change, tab.select):
        on(shared, event, chosen, **pick)
    on(shared, held.change, shown, [source, shared.dataset, held], player)
    on(
        shared,
        go.click,
        answered,
        [run, source, shared.dataset, held, clip, said, text, described, seed],
        answers,
        concurrency_limit=1,
        concurrency_id="try",
        trigger_mode="once",
    )


def _form(
    projects: Projects, tried: try_model.Trial, at: str | None, dataset: str | None, given: str | None
) -> list[Any]:
    found = _dataset(projects, dataset)
    recordings = try_model.held_out(found) if found is not None else []
    speaking = tried.task == "speak"
    kinds = [kind for kind in (VOICES if speaking else HEARD) if recordings or kind not in RECORDINGS]
    at = at if at in kinds else kinds[0]
    ids = [id for _, id in recordings]
    given = given if given in ids else (ids[0] if ids else None)
    return [
        gr.HTML(try_model_html.about(tried)),
        gr.Radio(
            [(say(f"try_{'voice' if speaking else 'hear'}_{kind}"), kind) for kind in kinds],
            value=at,
            label=say("try_voice" if speaking else "try_from"),
        ),
        gr.Textbox(visible=speaking),
        gr.Textbox(visible=at == "described"),
        gr.Audio(visible=at in CLIPS),
        gr.Dropdown(recordings, value=given, visible=at in RECORDINGS),
        _player(found, given if at in RECORDINGS else None),
        gr.Textbox(
            visible=at in CLIPS and tried.task != "diarize", label=say("try_said_voice" if speaking else "try_said")
        ),
        gr.Button(say(f"try_go_{tried.task}")),
        gr.Number(visible=speaking),
    ]


def _player(found: DataSet | None, id: str | None) -> Any:
    """A player of a recording, which its own route serves."""
    if found is None or not id:
        return gr.HTML("", visible=False)
    found.record(id)
    where = escape(f"/studio/audio/{found.name}/{id}")
    return gr.HTML(f'<audio controls preload="metadata" src="{where}"></audio>', visible=True)


def _dataset(projects: Projects, name: str | None) -> DataSet | None:
    return projects.dataset(name) if name and name in projects.datasets() else None
