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
        names = try_model.runs(projects)
        return gr.Dropdown(names, value=value if value in names else (names[0] if names else None))

    def chosen(
        projects: Projects, name: str | None, origin: str | None, dataset: str | None, recording: str | None
    ) -> list[Any]:
        """The form as the run's task needs it; what does not fit any more is emptied."""
        if not name or name not in try_model.runs(projects):
            return [gr.skip()] * len(form)
        trial = try_model.trial(projects, name)
        MODEL_CACHE.keep_only(trial.original, trial.export)
        return _form(projects, trial, origin, dataset, recording)

    def shown(projects: Projects, at: str | None, dataset: str | None, id: str | None) -> Any:
        return _player(_dataset(projects, dataset), id if at in RECORDINGS else None)

    def answered(
        projects: Projects,
        name: str | None,
        origin: str | None,
        dataset: str | None,
        id: str | None,
        clip_path: str | None,
        transcript: str | None,
        spoken_text: str | None,
        voice_text: str | None,
        seed_value: float | None,
    ) -> Iterator[str]:
        if not name:
            raise gr.Error(say("try_no_run"), print_exception=False)
        trial, folder = try_model.trial(projects, name), _dataset(projects, dataset)
        language = folder.about.get("language") if folder is not None else None
        device_name = try_model.device(projects)
        speaking = trial.task == "speak"
        limits = (try_model.VOICE_RATE, try_model.LONGEST_VOICE) if speaking else (try_model.RATE, try_model.LONGEST)
        clip_heard: TrialClip | None = None
        if origin in RECORDINGS:
            if folder is None or not id:
                raise gr.Error(say("try_none"), print_exception=False)
            clip_heard = try_model.recorded(folder, id, *limits)
        elif origin in CLIPS:
            if not clip_path:
                raise gr.Error(say("try_none"), print_exception=False)
            clip_heard = try_model.uploaded(clip_path, *limits)
            clip_heard.text = (transcript or "").strip() if trial.task != "diarize" else ""
        answers_so_far: list[try_model.ModelAnswer] = []
        if speaking:
            described = (voice_text or "") if origin == "described" else ""
            spoken = try_model.speak(
                MODEL_CACHE,
                trial,
                spoken_text or "",
                clip_heard,
                described,
                language,
                int(seed_value or 0),
                device_name,
            )
            yield try_model_html.spoken(trial, answers_so_far)
            for answer in spoken:
                answers_so_far.append(answer)
                yield try_model_html.spoken(trial, answers_so_far)
        elif clip_heard is not None:
            yield try_model_html.listened(trial, clip_heard, answers_so_far)
            for answer in try_model.listen(MODEL_CACHE, trial, clip_heard, language, device_name):
                answers_so_far.append(answer)
                yield try_model_html.listened(trial, clip_heard, answers_so_far)

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
    projects: Projects, trial: try_model.Trial, origin: str | None, dataset: str | None, chosen: str | None
) -> list[Any]:
    folder = _dataset(projects, dataset)
    recordings = try_model.held_out(folder) if folder is not None else []
    speaking = trial.task == "speak"
    kinds = [kind for kind in (VOICES if speaking else HEARD) if recordings or kind not in RECORDINGS]
    origin = origin if origin in kinds else kinds[0]
    ids = [id for _, id in recordings]
    chosen = chosen if chosen in ids else (ids[0] if ids else None)
    return [
        gr.HTML(try_model_html.about(trial)),
        gr.Radio(
            [(say(f"try_{'voice' if speaking else 'hear'}_{kind}"), kind) for kind in kinds],
            value=origin,
            label=say("try_voice" if speaking else "try_from"),
        ),
        gr.Textbox(visible=speaking),
        gr.Textbox(visible=origin == "described"),
        gr.Audio(visible=origin in CLIPS),
        gr.Dropdown(recordings, value=chosen, visible=origin in RECORDINGS),
        _player(folder, chosen if origin in RECORDINGS else None),
        gr.Textbox(
            visible=origin in CLIPS and trial.task != "diarize", label=say("try_said_voice" if speaking else "try_said")
        ),
        gr.Button(say(f"try_go_{trial.task}")),
        gr.Number(visible=speaking),
    ]


def _player(dataset: DataSet | None, id: str | None) -> Any:
    """A player of a recording, which its own route serves."""
    if dataset is None or not id:
        return gr.HTML("", visible=False)
    dataset.record(id)
    address = escape(f"/studio/audio/{dataset.name}/{id}")
    return gr.HTML(f'<audio controls preload="metadata" src="{address}"></audio>', visible=True)


def _dataset(projects: Projects, name: str | None) -> DataSet | None:
    return projects.dataset(name) if name and name in projects.datasets() else None
