"""Step 4: try the model that was trained, beside the one that it came from."""

from collections.abc import Iterator
from html import escape
from types import SimpleNamespace
from typing import Any

import gradio as gr

from stentor.report import drawings
from stentor.studio.projects import DataSet, Projects
from stentor.studio.runs import try_model
from stentor.studio.runs.try_model import MODEL_CACHE, TrialClip
from stentor.studio.steps.shared import Choice, Names, Shared, element, labelled
from stentor.studio.texts import say

CLIP_SOURCES = ("clip", "held_out")
"""Inputs of a model that listens."""
VOICE_SOURCES = ("own", "described", "taken", "copied")
"""Voices that a model may speak in: its own, one that is described, that of a recording or of a clip."""
CLIPS, RECORDINGS = ("clip", "copied"), ("held_out", "taken")
"""Choices of both from a clip of the person, and from a recording of the data set."""
MOST_SEED = 2**31 - 1


def build(shared: Shared, tab: gr.Tab) -> None:
    """Choose a run, give it a clip or a text, see or hear the answers."""
    shared.page.load(None, js=f"() => {{ {drawings.script()} }}")
    w = _layout()
    form = [w.note, w.live, w.source, w.text, w.described, w.clip, w.held, w.player, w.transcript, w.go, w.seed]
    shared.keep(w.run, w.all, w.text, w.described, w.transcript, w.seed)
    opened = [tab.select, shared.changed.click, shared.page.load, shared.shown, w.all.input]
    shared.on(opened, _known, [w.run, shared.dataset, w.all], w.run)
    choices = [w.run.change, w.source.input, shared.shown, tab.select]
    shared.on(choices, _chosen, [w.run, w.source, shared.dataset, w.held], form)
    shared.on(w.held.change, _shown, [w.source, shared.dataset, w.held], w.player)
    inputs = [w.run, w.source, shared.dataset, w.held, w.clip, w.transcript, w.text, w.described, w.seed]
    options: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "try", "trigger_mode": "once"}
    shared.on(w.go.click, _answered, inputs, w.answers, **options)


def _layout() -> SimpleNamespace:
    w, most = SimpleNamespace(), try_model.MOST_CHARACTERS
    gr.Markdown(say("try_intro"))
    with gr.Row(equal_height=True):
        with gr.Column(min_width=300):
            w.run = Choice([], **labelled("try_run"))
            w.all = gr.Checkbox(False, **labelled("try_all"), container=False)
        with gr.Column(min_width=300):
            w.note = gr.HTML(elem_id="try_about")
    w.live = gr.HTML(visible=False, elem_id="try_live", padding=False)
    with gr.Row():
        with gr.Column():
            w.text = gr.Textbox(**labelled("try_text"), lines=3, max_length=most, visible=False)
            w.source = Names([], **labelled("try_from"))
            w.described = gr.Textbox(**labelled("try_described"), max_length=200, visible=False)
        with gr.Column():
            # No `format`: Gradio would hand every other file to FFmpeg before its first bytes are looked at.
            w.clip = gr.Audio(
                label=say("try_clip"),
                type="filepath",
                sources=["microphone", "upload"],
                editable=False,
                buttons=[],
                elem_id="clip",
            )
            w.held = Choice([], **labelled("try_held"), visible=False)
            w.player = gr.HTML(visible=False, elem_id="try_player", padding=False)
            w.transcript = gr.Textbox(**labelled("try_said"), max_length=most)
    with gr.Row():
        w.go = gr.Button(say("try_go"), variant="primary", elem_id="try")
        w.seed = gr.Number(0, **labelled("try_seed"), precision=0, minimum=0, maximum=MOST_SEED, visible=False)
    w.answers = gr.HTML(elem_id="answers", padding=False)
    gr.HTML(f"<style>{drawings.style()}</style>", visible="hidden")
    return w


def _known(projects: Projects, value: str | None, dataset: str | None, every: bool) -> Any:
    names = try_model.runs(projects, None if every else dataset)
    return gr.Dropdown(names, value=value if value in names else (names[0] if names else None))


def _chosen(
    projects: Projects, name: str | None, source: str | None, dataset: str | None, recording: str | None
) -> list[Any]:
    """The form as the run's task needs it; what does not fit any more is emptied."""
    if not name or name not in try_model.runs(projects):
        return [gr.skip()] * 11
    trial = try_model.trial(projects, name)
    MODEL_CACHE.keep_only(trial.original, trial.export)
    folder = _dataset(projects, dataset)
    recordings = try_model.held_out(folder) if folder is not None else []
    speaking = trial.task == "speak"
    kinds = [kind for kind in (VOICE_SOURCES if speaking else CLIP_SOURCES) if recordings or kind not in RECORDINGS]
    source = source if source in kinds else kinds[0]
    ids = [id for _, id in recordings]
    recording = recording if recording in ids else (ids[0] if ids else None)
    return [
        gr.HTML(try_model.about(trial)),
        _live(trial, folder),
        gr.Radio(
            [(say(f"try_{'voice' if speaking else 'hear'}_{kind}"), kind) for kind in kinds],
            value=source,
            label=say("try_voice" if speaking else "try_from"),
        ),
        gr.Textbox(visible=speaking),
        gr.Textbox(visible=source == "described"),
        gr.Audio(visible=source in CLIPS),
        gr.Dropdown(recordings, value=recording, visible=source in RECORDINGS),
        _player(folder, recording if source in RECORDINGS else None),
        gr.Textbox(
            visible=source in CLIPS and trial.task != "diarize", label=say("try_said_voice" if speaking else "try_said")
        ),
        gr.Button(say(f"try_go_{trial.task}")),
        gr.Number(visible=speaking),
    ]


def _live(trial: try_model.RunTrial, dataset: DataSet | None) -> Any:
    """Live transcription, for models that write."""
    language = str(dataset.about.get("language") or "") if dataset is not None else ""
    part = element(f"{trial.name} {language}", "stentor-live", run=trial.name, language=language)
    return gr.HTML(part, visible=trial.task in ("transcribe", "words"))


def _shown(projects: Projects, source: str | None, dataset: str | None, id: str | None) -> Any:
    return _player(_dataset(projects, dataset), id if source in RECORDINGS else None)


def _answered(projects: Projects, name: str | None, source: str | None, *values: Any) -> Iterator[str]:
    """The answers so far as HTML, each time that there is one more. `values`: data set, recording, path and transcript
    of the clip, text to speak, description of a voice, seed."""
    dataset, id, path, transcript, text, description, seed = values
    if not name:
        raise gr.Error(say("try_no_run"), print_exception=False)
    trial, folder = try_model.trial(projects, name), _dataset(projects, dataset)
    language = folder.about.get("language") if folder is not None else None
    device = try_model.device(projects)
    speaking = trial.task == "speak"
    limits = (try_model.VOICE_RATE, try_model.LONGEST_VOICE) if speaking else (try_model.RATE, try_model.LONGEST)
    clip: TrialClip | None = None
    if source in RECORDINGS:
        if folder is None or not id:
            raise gr.Error(say("try_none"), print_exception=False)
        clip = try_model.recorded(folder, id, *limits)
    elif source in CLIPS:
        if not path:
            raise gr.Error(say("try_none"), print_exception=False)
        clip = try_model.uploaded(path, *limits)
        clip.text = (transcript or "").strip() if trial.task != "diarize" else ""
    if speaking:
        instruct = (description or "") if source == "described" else ""
        answers = try_model.speak(MODEL_CACHE, trial, text or "", clip, instruct, language, int(seed or 0), device)
        clip = None  # whose voice it is
    elif clip is not None:
        answers = try_model.listen(MODEL_CACHE, trial, clip, language, device)
    else:
        return
    done: list[try_model.ModelAnswer] = []
    yield try_model.drawn(trial, clip, done)
    for answer in answers:
        done.append(answer)
        yield try_model.drawn(trial, clip, done)


def _player(dataset: DataSet | None, id: str | None) -> Any:
    """A player of a recording, which its own route serves."""
    if dataset is None or not id:
        return gr.HTML("", visible=False)
    dataset.record(id)
    address = escape(f"/studio/audio/{dataset.name}/{id}")
    return gr.HTML(f'<audio controls preload="metadata" src="{address}"></audio>', visible=True)


def _dataset(projects: Projects, name: str | None) -> DataSet | None:
    return projects.dataset(name) if name and name in projects.datasets() else None
