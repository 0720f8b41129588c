"""Step 5: a model, a data set or a demo on the Hugging Face Hub, with a card that is read before."""

import functools
from types import SimpleNamespace
from typing import Any

import gradio as gr

from stentor.studio.projects import Projects
from stentor.studio.runs import afterwards, detached, publish_jobs
from stentor.studio.runs.machine import HubAccount, account
from stentor.studio.runs.publish_jobs import PublishOrder
from stentor.studio.steps.shared import Choice, Shared, labelled, plain
from stentor.studio.texts import render, say

EVERY = 1.5
"""Seconds between two looks at a publication."""
ADAPTERS, MERGED = "adapters", "merged"
NONE = ""
"""The choice of no licence."""


def confirming(question: str) -> str:
    """The script of an event whose last inputs are what is published, where, whether only its owner sees it, and the
    repository that a person agreed to publish for everybody to see, which it asks for. `question`: a key of the
    texts."""
    return f"""(...values) => {{
  const [thing, to, isPrivate] = values.slice(-4), name = (to ?? '').trim();
  const shown = document.querySelector('#publish_what input')?.value ?? '';
  const question = window.stentorTexts.{question}.replaceAll('{{what}}', shown).replaceAll('{{to}}', name);
  return [...values.slice(0, -1), thing && !isPrivate && name && confirm(question) ? name : ''];
}}"""


def build(shared: Shared, tab: gr.Tab) -> None:
    """The form, the card, and what became of it."""
    w = _layout()
    form = [w.method, w.licence, w.suggested, w.what, w.to, w.private]
    listed = [w.what, shared.dataset, w.all]
    state = [w.shown, w.again, w.stop, w.seen, w.timer]
    opened = [tab.select, shared.page.load, shared.changed.click]
    opened += [shared.shown, w.all.input]
    shared.on(opened, _offered, listed, [w.what, w.method, w.licence, w.warning, w.everything])
    shared.on(opened, _listed, w.past, w.past)
    # One listener, so that an answer for an earlier choice never comes after that for the last.
    names = functools.partial(gr.on, [tab.select, shared.page.load, w.what.change])
    shared.on(names, _named, [w.what, w.to, w.suggested], [w.account, w.to, w.suggested], trigger_mode="always_last")
    shared.on(w.what.change, _choice, w.what, [w.method, w.licence, w.warning])
    shared.on(w.what.change, _cleared, [w.what, w.written], [w.card, w.written])
    shared.on(w.make.click, _carded, form, [w.card, w.written], show_progress="minimal", trigger_mode="once")
    go, outputs = [w.card, w.written, *form, w.confirmed], [w.past, *state]
    shared.on(w.go.click, _published, go, outputs, trigger_mode="once", js=confirming("publish_sure"))
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
                with gr.Column(scale=2):
                    w.what = Choice([], **labelled("publish_what"))
                    w.all = gr.Checkbox(False, **labelled("publish_all"), container=False)
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
                    _licences(),
                    value=NONE,
                    **labelled("publish_licence", info="publish_licence_help"),
                    allow_custom_value=True,
                    scale=2,
                )
            w.private = gr.Checkbox(True, **labelled("publish_private"))
        w.warning = gr.HTML(elem_id="publish_warning")
        with gr.Row():
            w.make = gr.Button(say("publish_card_make"), elem_id="card_make")
            w.go = gr.Button(say("publish_go"), variant="primary", elem_id="publish_go")
        _result_layout(w)
    # The card as it was written, and what for: so that an unedited one follows the choices.
    w.written = gr.State(None)
    # The name that was suggested last: what a person wrote is never replaced.
    w.suggested = gr.State("")
    w.seen = gr.State("")
    w.confirmed = gr.Textbox("", visible=False)
    """The repository that a person agreed to publish to for everybody to see."""
    w.timer = gr.Timer(EVERY, active=False)
    return w


def _licences() -> list[tuple[str, str]]:
    return [(say("publish_no_licence"), NONE), *((name, name) for name in publish_jobs.LICENCES)]


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


def _offered(projects: Projects, value: str | None, dataset: str | None, every: bool) -> Any:
    offers = publish_jobs.offers(projects, None if every else dataset)
    choices = [(say(f"publish_{kind}", name=of), f"{kind}:{of}") for kind, of in offers]
    known = [key for _, key in choices]
    chosen = value if value in known else (known[0] if known else None)
    return [gr.Dropdown(choices, value=chosen), *_choice(projects, chosen), gr.Column(visible=projects.publishes)]


def _named(projects: Projects, value: str | None, target: str | None, before: str) -> Any:
    """The signed-in account, asked of the Hub while the rest of the page is already there; and a name to publish to."""
    who, line = _account(projects)
    return [line, *_free_name(value or "", who, target, before)]


def _free_name(key: str, who: HubAccount, to: str | None, before: str) -> list[Any]:
    """A name to publish `what:of` to, for the form and its memory, unless a person wrote another."""
    name = publish_jobs.suggested(key, who.name)
    return [name, name] if name and (to or "").strip() in ("", before) else [gr.skip(), gr.skip()]


def _carded(projects: Projects, *values: Any) -> Any:
    order = _order(*values)
    text = publish_jobs.make_card(projects, order)
    return [gr.Textbox(text, visible=True), (order, text)]


def _cleared(projects: Projects, value: str | None, written: tuple[PublishOrder, str] | None) -> Any:
    """A card of something else is not shown any longer."""
    other = written is not None and (written[0].what, written[0].of) != publish_jobs.split_choice(value or "")
    return [gr.Textbox("", visible=False), None] if other else [gr.skip(), gr.skip()]


def _published(projects: Projects, *values: Any) -> Any:
    text, written, *choices, confirmed = values
    order = _order(*choices)
    _require_confirmation(order, confirmed)
    card = publish_jobs.card_to_send(order, text or "", written)
    publication = publish_jobs.publish(projects, order, card)
    gr.Info(say("publish_begun" if card in (None, text) else "publish_card_anew"))
    return [_listed(projects, publication.folder.name), *_look(projects, publication.folder.name, "")]


def _repeated(projects: Projects, name: str | None) -> Any:
    publish_jobs.again(projects, publish_jobs.find(projects, name or ""))
    return _look(projects, name, "")


def _stopped(projects: Projects, name: str | None) -> Any:
    detached.end(publish_jobs.find(projects, name or "").folder)  # publishing again resumes from there
    return _look(projects, name, "")


def _order(
    method: str, licence: str | None, before: str, what: str | None, to: str | None, private: bool
) -> PublishOrder:
    """The order of the form. Raises a plain error where something is not filled in."""
    kind, of = publish_jobs.split_choice(what or "")
    target = (to or "").strip()
    if target == before:  # a name that was suggested may not have followed the choice yet
        target = publish_jobs.suggested(what or "", account().name) or target
    if not of or not target:
        raise gr.Error(say("publish_card_none"), print_exception=False)
    merge = kind == "model" and method == MERGED
    return PublishOrder(kind, of, target, bool(private), (licence or "").strip() or None, merge)


def _choice(projects: Projects, value: str | None) -> list[Any]:
    """The choices between adapters and the whole model, and of a licence, where there are any; and a warning."""
    kind, of = publish_jobs.split_choice(value or "")
    adapters = kind == "model" and bool(of) and publish_jobs.has_adapters(projects, of)
    warning = render("line", publish_jobs.warning(projects, value or ""), "wrong")
    return [gr.Radio(visible=adapters), gr.Dropdown(visible=kind != "demo"), warning]


def _require_confirmation(order: PublishOrder, confirmed: str) -> None:
    if not order.private and confirmed != order.to:
        raise gr.Error(say("publish_unconfirmed"), print_exception=False)


def _account(projects: Projects) -> tuple[HubAccount, str]:
    """The account to publish with, and a line that tells it."""
    if not projects.publishes:
        return HubAccount(False), say("publish_closed")
    who = account()
    if not who.token:
        return who, say("publish_sign_in")
    if not who.name:
        return who, say("publish_unreachable")
    return who, say("publish_account_server" if projects.guarded else "publish_account", name=plain(who.name))


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


def after_training(shared: Shared, tab: gr.Tab, name: gr.Textbox) -> list[Any]:
    """Build the choice of what follows a training: publishing its model, and a demo. `name`: the run's. Answers the
    values for `chosen_afterwards`, which are the last inputs of the start, whose script is `confirming`."""
    with gr.Group(elem_id="after"):
        wanted = gr.Checkbox(False, **labelled("after_publish"), interactive=False)
        account_line = gr.Markdown(elem_id="after_account", padding=True)
        with gr.Column(visible=False) as details:
            with gr.Row():
                to = gr.Textbox(**labelled("after_to", info="publish_to_help"), max_length=200, scale=2)
                licence = gr.Dropdown(_licences(), value=NONE, **labelled("after_licence"), allow_custom_value=True)
            with gr.Row():
                private = gr.Checkbox(True, **labelled("after_private"))
                demo = gr.Checkbox(False, **labelled("after_demo"))
    suggested, confirmed = gr.State(""), gr.Textbox("", visible=False)
    shared.on([tab.select, shared.page.load], _after_possible, wanted, [wanted, account_line])
    wanted.change(lambda on: gr.Column(visible=on), wanted, details, api_visibility="private", show_progress="hidden")
    shared.on([wanted.change, name.change], _after_named, [wanted, name, to, suggested], [to, suggested])
    return [licence, demo, wanted, to, private, confirmed]


def chosen_afterwards(
    projects: Projects, run: str, licence: str, demo: bool, wanted: bool, to: str, private: bool, confirmed: str
) -> dict[str, Any] | None:
    """Orders that `jobs.start` leaves with a run of this name, from the values of `after_training`; None for
    nothing. Raises an error for what cannot be published, before anything is trained."""
    if not wanted:
        return None
    target = (to or "").strip()
    if not target:
        raise gr.Error(say("after_nowhere"), print_exception=False)
    order = PublishOrder("model", run, target, bool(private), (licence or "").strip() or None)
    _require_confirmation(order, confirmed)
    return afterwards.ordered(projects, order, f"{target}-demo" if demo else None)


def _after_possible(projects: Projects, wanted: bool) -> list[Any]:
    """Whether there is an account to publish with."""
    who, line = _account(projects)
    return [gr.Checkbox(bool(wanted) and who.token, interactive=who.token), line]


def _after_named(projects: Projects, wanted: bool, name: str, to: str, before: str) -> list[Any]:
    return _free_name(f"model:{name}", account(), to, before) if wanted else [gr.skip(), gr.skip()]
