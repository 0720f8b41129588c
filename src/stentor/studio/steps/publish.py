"""Step 5: a model, a data set or a demo on the Hugging Face Hub, with a card that is read before."""

import functools
from types import SimpleNamespace
from typing import Any

import gradio as gr

from stentor.studio.projects import Projects
from stentor.studio.runs import publish_jobs
from stentor.studio.runs.publish_jobs import PublishOrder
from stentor.studio.steps.shared import Choice, Shared, labelled, plain
from stentor.studio.texts import render, say

EVERY = 1.5
"""Seconds between two looks at a publication."""
ADAPTERS, MERGED = "adapters", "merged"
NONE = ""
"""The choice of no licence."""


def build(shared: Shared, tab: gr.Tab) -> None:
    """The form, the card, and what became of it."""
    w = _layout()
    form = [w.what, w.method, w.to, w.private, w.licence, w.suggested]
    state = [w.shown, w.again, w.stop, w.seen, w.timer]
    opened = [tab.select, shared.page.load, shared.changed.click]
    shared.on(opened, _offered, w.what, [w.what, w.method, w.licence, w.everything])
    shared.on(opened, _listed, w.past, w.past)
    # One listener, so that an answer for an earlier choice never comes after that for the last.
    names = functools.partial(gr.on, [tab.select, shared.page.load, w.what.change])
    shared.on(names, _named, [w.what, w.to, w.suggested], [w.account, w.to, w.suggested], trigger_mode="always_last")
    shared.on(w.what.change, _choice, w.what, [w.method, w.licence])
    shared.on(w.what.change, _cleared, [w.what, w.written], [w.card, w.written])
    shared.on(w.make.click, _carded, form, [w.card, w.written], show_progress="minimal", trigger_mode="once")
    shared.on(w.go.click, _published, [*form, w.card, w.written], [w.past, *state], trigger_mode="once")
    shared.on(w.again.click, _repeated, w.past, state, trigger_mode="once")
    shared.on(w.stop.click, _stopped, w.past, state, trigger_mode="once")
    shared.on([w.past.change, tab.select], _look, [w.past, w.seen], state)
    shared.on(w.timer.tick, _look, [w.past, w.seen], state, trigger_mode="once")


def _layout() -> SimpleNamespace:
    w = SimpleNamespace()
    gr.Markdown(say("publish_intro"))
    w.account = gr.Markdown(elem_id="publish_account")
    with gr.Column(elem_id="publish_form") as w.everything:
        with gr.Group():
            with gr.Row():
                w.what = Choice([], **labelled("publish_what"), scale=2)
                w.method = gr.Radio(
                    [(say("publish_adapters"), ADAPTERS), (say("publish_merged"), MERGED)],
                    value=ADAPTERS,
                    **labelled("publish_method"),
                    visible=False,
                    scale=2,
                )
            with gr.Row():
                w.to = gr.Textbox(
                    **labelled("publish_to", info="publish_to_help"),
                    placeholder=say("publish_to_hint"),
                    max_length=200,
                    scale=2,
                )
                w.licence = gr.Dropdown(
                    [(say("publish_no_licence"), NONE), *((name, name) for name in publish_jobs.LICENCES)],
                    value=NONE,
                    **labelled("publish_licence", info="publish_licence_help"),
                    allow_custom_value=True,
                    scale=2,
                )
            w.private = gr.Checkbox(True, **labelled("publish_private"))
        with gr.Row():
            w.make = gr.Button(say("publish_card_make"), elem_id="card_make")
            w.go = gr.Button(say("publish_go"), variant="primary", elem_id="publish_go")
        _result_layout(w)
    # The card as it was written, and what for: so that an unedited one follows the choices.
    w.written = gr.State(None)
    # The name that was suggested last: what a person wrote is never replaced.
    w.suggested = gr.State("")
    w.seen = gr.State("")
    w.timer = gr.Timer(EVERY, active=False)
    return w


def _result_layout(w: SimpleNamespace) -> None:
    w.past = Choice([], **labelled("publish_past"), visible=False)
    w.shown = gr.HTML(elem_id="publish_state")
    with gr.Row():
        w.again = gr.Button(say("publish_again"), visible=False, variant="primary", elem_id="publish_again")
        w.stop = gr.Button(say("publish_stop"), visible=False, variant="stop", elem_id="publish_stop")
    w.card = gr.Textbox(
        label=say("publish_card"),
        info=say("publish_card_help"),
        lines=14,
        max_lines=30,
        visible=False,
        max_length=publish_jobs.MOST_CARD,
        elem_id="card",
    )


def _offered(projects: Projects, value: str | None) -> Any:
    choices = [(say(f"publish_{kind}", name=of), f"{kind}:{of}") for kind, of in publish_jobs.offers(projects)]
    known = [key for _, key in choices]
    chosen = value if value in known else (known[0] if known else None)
    return [gr.Dropdown(choices, value=chosen), *_choice(projects, chosen), gr.Column(visible=projects.publishes)]


def _named(projects: Projects, value: str | None, target: str | None, before: str) -> Any:
    """The signed-in account, asked of the Hub while the rest of the page is already there; and a name to publish to."""
    if not projects.publishes:
        return [say("publish_closed"), gr.skip(), gr.skip()]
    token, user = publish_jobs.account()
    name = publish_jobs.suggested(value or "", user)
    free = bool(name) and (target or "").strip() in ("", before)
    return [_signed_in(token, user, projects.guarded), *([name, name] if free else [gr.skip(), gr.skip()])]


def _carded(projects: Projects, *values: Any) -> Any:
    order = _order(*values)
    text = publish_jobs.make_card(projects, order)
    return [gr.Textbox(text, visible=True), (order, text)]


def _cleared(projects: Projects, value: str | None, written: tuple[PublishOrder, str] | None) -> Any:
    """A card of something else is not shown any longer."""
    other = written is not None and (written[0].what, written[0].of) != publish_jobs.split_choice(value or "")
    return [gr.Textbox("", visible=False), None] if other else [gr.skip(), gr.skip()]


def _published(projects: Projects, *values: Any) -> Any:
    *choices, text, written = values
    order = _order(*choices)
    card = publish_jobs.card_to_send(order, text or "", written)
    publication = publish_jobs.publish(projects, order, card)
    gr.Info(say("publish_begun" if card in (None, text) else "publish_card_anew"))
    return [_listed(projects, publication.folder.name), *_look(projects, publication.folder.name, "")]


def _repeated(projects: Projects, name: str | None) -> Any:
    publish_jobs.again(projects, publish_jobs.find(projects, name or ""))
    return _look(projects, name, "")


def _stopped(projects: Projects, name: str | None) -> Any:
    publish_jobs.stop(publish_jobs.find(projects, name or ""))
    return _look(projects, name, "")


def _order(
    what: str | None, method: str, to: str | None, private: bool, licence: str | None, before: str
) -> PublishOrder:
    """The order of the form. Raises a plain error where something is not filled in."""
    kind, of = publish_jobs.split_choice(what or "")
    target = (to or "").strip()
    if target == before:  # a name that was suggested may not have followed the choice yet
        target = publish_jobs.suggested(what or "", publish_jobs.account()[1]) or target
    if not of or not target:
        raise gr.Error(say("publish_card_none"), print_exception=False)
    merge = kind == "model" and method == MERGED
    return PublishOrder(kind, of, target, bool(private), (licence or "").strip() or None, merge)


def _choice(projects: Projects, value: str | None) -> list[Any]:
    """The choices between adapters and the whole model, and of a licence, where there are any."""
    kind, of = publish_jobs.split_choice(value or "")
    adapters = kind == "model" and bool(of) and publish_jobs.has_adapters(projects, of)
    return [gr.Radio(visible=adapters), gr.Dropdown(visible=kind != "demo")]


def _signed_in(token: bool, user: str | None, guarded: bool) -> str:
    if not token:
        return say("publish_sign_in")
    if guarded and user:
        return say("publish_account_server", name=plain(user))
    return say("publish_account", name=plain(user)) if user else say("publish_unreachable")


def _listed(projects: Projects, name: str | None) -> Any:
    """The publications, to choose from where there are several; the last one is chosen unless another was."""
    publications = publish_jobs.publications(projects)
    names = [p.folder.name for p in publications]
    choices = [(f"{p.order.to} ({say(f'publish_kind_{p.order.what}')})", p.folder.name) for p in publications]
    chosen = name if name in names else (names[0] if names else None)
    return gr.Dropdown(choices, value=chosen, visible=len(publications) > 1)


def _look(projects: Projects, name: str | None, before: str) -> list[Any]:
    """State of a publication; nothing is sent where nothing changed."""
    if not name:
        return [gr.skip()] * 5
    publication = publish_jobs.find(projects, name)
    status = publish_jobs.state(publication)
    text = render("publication", publication.order, status)
    if text == before:
        return [gr.skip()] * 5
    repeatable, stoppable = status.state in ("failed", "stopped"), status.state == "running"
    # A timer that has nothing to look at costs the server nothing.
    return [text, gr.Button(visible=repeatable), gr.Button(visible=stoppable), text, gr.Timer(active=status.alive)]
