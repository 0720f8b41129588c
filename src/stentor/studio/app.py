"""The page: a data set on top, the five steps below. A reload shows what is on the disk, and what the browser keeps of
the page: data set and step in the address, forms (Shared.keep), takes and chosen files (page/store.mjs)."""

import html
from typing import Any

import gradio as gr

from stentor.errors import StentorError
from stentor.studio.dataset.prompts import languages
from stentor.studio.projects import Projects
from stentor.studio.runs.jobs import jobs
from stentor.studio.runs.machine import this_machine
from stentor.studio.server.accounts import Accounts
from stentor.studio.server.server import USER, head, page_files
from stentor.studio.steps import dataset, publish, train, try_model
from stentor.studio.steps.shared import Choice, Shared, plain
from stentor.studio.texts import say
from stentor.studio.uploaded_audio import MOST_BYTES

STEPS = {
    "speak": (dataset.build_speak,),
    "check": (dataset.build_check,),
    "train": (train.build,),
    "try": (try_model.build,),
    "publish": (publish.build,),
}
"""Parts of a step, by its name (a key of texts.yaml), in their order."""
_SANS = ["ui-sans-serif", "system-ui", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
_SURE = """(name) =>
  stentorKeep.deleting(confirm(window.stentorTexts.dataset_sure.replaceAll("{name}", name)) ? name : '')"""
IDLE = 0.05
"""Seconds that Gradio's queue sleeps between two looks at what is to be done. Its own millisecond costs 7 % of a core
for as long as the studio is open, beside a training."""
LOOK = 10.0
"""Seconds between two looks at which steps are possible."""


def mounted(accounts: Accounts) -> Any:
    """The studio as a FastAPI app. Who asks is what the server put into the request."""
    from fastapi import FastAPI

    # Fonts are the system's: nothing is fetched from elsewhere. Light or dark follows the browser until it is switched.
    theme = gr.themes.Soft(
        primary_hue="teal", neutral_hue="slate", radius_size="lg", font=_SANS, font_mono=["ui-monospace", "monospace"]
    )
    theme.set(
        **{
            f"block_{part}_{style}{mode}": value
            for part in ("label", "title")
            for mode in ("", "_dark")
            for style, value in (("text_color", "*body_text_color"), ("background_fill", "transparent"))
        },
        checkbox_label_background_fill_selected="*primary_700",
        slider_color="*primary_700",
        checkbox_label_background_fill_selected_dark="*primary_700",
        block_title_padding="0",
        block_title_text_weight="500",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        button_secondary_background_fill="*neutral_100",
        button_secondary_background_fill_hover="*neutral_200",
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_300",
        input_border_width="1px",
        input_border_width_dark="1px",
        **{
            f"{edge}_border_color{mode}": f"*neutral_{shade}"
            for edge in ("input", "checkbox")
            for mode, shade in (("", 500), ("_dark", 400))
        },
        **{
            f"link_text_color{state}{mode}": f"*primary_{shade}"
            for state in ("", "_active", "_hover", "_visited")
            for mode, shade in (("", 700), ("_dark", 300))
        },
    )
    built = page(accounts)
    # Gradio holds the files that events name to its upload folder only in a page that "has launched", which a mounted
    # page never says of itself: any file of the machine could be given as a clip.
    built.has_launched = True
    return gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        built,
        path="",
        auth_dependency=lambda request: request.scope.get(USER),
        show_error=False,
        max_file_size=MOST_BYTES,
        footer_links=[],
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        run_history=False,
        enable_monitoring=False,
        theme=theme,
        head=head(page_files()),
    )


def page(accounts: Accounts) -> gr.Blocks:
    """The studio's page."""
    with gr.Blocks(title=say("title"), analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True) as built:
        gr.HTML(f"<stentor-header{' signed-in' if accounts.guarded else ''}></stentor-header>", elem_id="header")
        machine = gr.Markdown(elem_id="machine", padding=True)
        chosen = Choice([], label=say("dataset"), visible=False, elem_id="dataset")
        with gr.Accordion(say("new_dataset"), open=True, elem_id="new") as new:
            gr.Markdown(say("five_steps"), elem_id="five_steps")
            gr.Markdown(say("first_step"))
            with gr.Row(equal_height=True):
                name = gr.Textbox(label=say("new_name"), max_length=64, elem_id="new_name", placeholder=say("new_hint"))
                language = gr.Dropdown(languages(), value="en", label=say("language"), elem_id="language")
            create = gr.Button(say("create"), elem_id="create", variant="primary")
            delete = gr.Button(say("dataset_delete"), elem_id="delete_dataset", size="sm", visible=False)
        # Clicked by scripts: it must be in the page, not be seen.
        changed, address = (gr.Button("", visible="hidden", elem_id=name) for name in ("changed", "address"))
        started, again, step = (gr.Textbox("", visible="hidden", elem_id=name) for name in ("started", "again", "step"))
        shared = Shared(built, accounts.projects, chosen, language, changed, started, again)
        shared.on(built.load, _machine, None, machine)
        dataset.build_identity(shared)
        tabs = {}
        with gr.Tabs(elem_id="steps"):
            for key, builds in STEPS.items():
                with gr.Tab(say(key), id=key, visible=False, elem_id=f"step_{key}") as tabs[key]:
                    for build in builds:
                        build(shared, tabs[key])
        seen = gr.State(())
        looks = gr.Timer(LOOK)

        known = [chosen, new, delete]
        asked = [built.load, address.click]
        asked = shared.on(asked, _opened, [chosen, step], known, js="() => stentorKeep.wanted()")
        for deleted in shared.on(delete.click, _delete, chosen, known, js=_SURE):
            deleted.success(None, js="() => stentorKeep.deleted()", api_visibility="private")
        shared.on([create.click, name.submit], _create, [name, language], [*known, name], trigger_mode="once")
        # Not at once when the page is loaded: a step that was opened before there is a data set would be filled twice.
        events = [asked[0].then, changed.click, shared.shown, looks.tick]
        shared.on(events, _steps, [chosen, seen], [seen, *tabs.values()])
        shared.fill()
    built._queue.sleep_when_free = built._queue.progress_update_sleep_when_free = IDLE
    return built


def _opened(projects: Projects, name: str | None, step: str) -> list[Any]:
    """Data set and step of the address, as far as they are there."""
    if name and name not in projects.datasets():
        gr.Warning(html.escape(say("no_such_dataset", name=name[:64])))
    if step and not possible(projects, _first(projects.datasets(), name)).get(step):
        gr.Warning(html.escape(say("no_such_step", name=step[:64])))
    return _known(projects, name)


def _first(names: list[str], value: str | None) -> str | None:
    return value if value in names else next(iter(names), None)


def _machine(projects: Projects) -> str:
    """Line with the machine to train on and the account to publish with."""
    now = this_machine(projects, LOOK)
    gpu = ", ".join(now.gpus) or say("machine_gpu" if now.gpu else "machine_no_gpu")
    line = say("machine", count=f"{now.cores:g}", memory=f"{now.memory_gb or 0:.0f}", gpu=gpu)
    if now.account is None:
        return plain(line)
    known = "machine_account" if now.account.name else "machine_account_unknown"
    account = say(known if now.account.token else "machine_no_account", name=now.account.name)
    return plain(f"{line} · {account}")


def _known(projects: Projects, value: str | None) -> list[Any]:
    """The data sets to choose from, and what of the page is there with them and without."""
    names = projects.datasets()
    chosen, filled = _first(names, value), bool(names)
    return [gr.Dropdown(names, value=chosen, visible=filled), gr.Accordion(open=not filled), gr.Button(visible=filled)]


def _create(projects: Projects, name: str, code: str) -> list[Any]:
    made = projects.create(name.strip(), code if code in dict(map(reversed, languages())) else None)
    gr.Info(say("created", name=made.name))
    return [*_known(projects, made.name), ""]


def _delete(projects: Projects, value: str | None) -> list[Any]:
    if not value:  # the person thought better of it
        return [gr.skip()] * 3
    projects.delete(value)
    gr.Info(say("dataset_gone", name=value))
    return _known(projects, None)


def _steps(projects: Projects, value: str | None, before: tuple[bool, ...]) -> list[Any]:
    """Steps that can be opened; nothing is sent where that is as `before`."""
    now = tuple(possible(projects, value).values())
    if now == tuple(before):
        return [gr.skip()] * (len(now) + 1)
    return [now, *(gr.Tab(visible=visible) for visible in now)]


def possible(projects: Projects, name: str | None) -> dict[str, bool]:
    """Steps that make sense now, with something to check, to train on, to try or to publish."""
    try:
        records = projects.dataset(name).records() if name in projects.datasets() else []
    except StentorError:  # a manifest that somebody damaged: Check tells what is wrong with it, once
        records = [{}]
    runs = jobs(projects)
    exported = any((job.folder / "export").is_dir() for job in runs)
    return {
        "speak": name is not None,
        "check": bool(records),
        "train": True,  # also on a data set of the Hub
        "try": exported,
        "publish": bool(records) or exported,
    }
