"""Step 5 without its widgets: what can be published, its card, and publishing as a process that outlives the page.

    FOLDER/published/ID/publication.json  what was asked for, as plain data
    FOLDER/published/ID/card.md           the card, where a person changed it
    FOLDER/published/ID/manifest.jsonl    of a data set: what is sent
    FOLDER/published/ID/output.txt ...    the command and its end, see detached.py

ID comes from the repository, so a repository has one upload at a time, and publishing there again resumes where a
broken connection left it. The token is the environment's or the Hub's login; it is in none of these files.
"""

import hashlib
import re
import tempfile
import time
import unicodedata
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stentor.errors import ConfigError
from stentor.publish import hub
from stentor.publish.hub_errors import AGAIN
from stentor.studio.dataset_folder import OWN_KEYS
from stentor.studio.files import checked_name, disk_errors, read_json, record_lines, write_bytes, write_json
from stentor.studio.projects import Projects
from stentor.studio.runs import detached, jobs
from stentor.studio.runs.judgement import got_worse
from stentor.studio.texts import say

What = Literal["model", "dataset", "demo"]
_CREATIVE_COMMONS = ("cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0")
LICENCES = ("apache-2.0", "mit", *_CREATIVE_COMMONS, "openrail", "gpl-3.0", "other")
"""The licences that are offered; others of the Hub's list can be written."""
LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
MOST_CARD = 500_000
"""Characters of the longest card."""
MOST_LINES = 12
"""Lines of the command that the page shows."""
PUBLISHED = "Published: "
"""Start of the command's last line; the repository's address follows."""
State = Literal["running", "stopping", "stopped", "failed", "published"]


@dataclass(frozen=True)
class PublishOrder:
    """Request of a person."""

    what: What
    of: str
    """A run's or a data set's name; of a demo also the id of a model on the Hub (USER/REPO)."""
    to: str
    """USER/REPO."""
    private: bool = True
    licence: str | None = None
    merge: bool = False
    """For a run with adapters: the whole model, which needs no base."""


@dataclass(frozen=True)
class PublicationStatus:
    """Where a publication stands."""

    state: State
    sentence: str
    """Error message."""
    link: str | None
    """Where it is, once it is there."""
    lines: str
    """The last lines of the command."""
    passing: bool = False
    """Whether it may go better in a moment: the Hub or the network failed."""

    @property
    def alive(self) -> bool:
        return self.state in ("running", "stopping")


@dataclass(frozen=True)
class Publication:
    """One publication: its folder."""

    folder: Path

    @property
    def order(self) -> PublishOrder:
        return PublishOrder(**{k: v for k, v in read_json(self.folder / "publication.json").items() if k != "time"})

    @property
    def time(self) -> float:
        """When it was last asked for, in seconds since 1970."""
        return float(read_json(self.folder / "publication.json").get("time", 0.0))


def offers(projects: Projects, dataset: str | None = None) -> list[tuple[What, str]]:
    """Publishable things, as (what, of): models and demos of the runs that have an export, data sets that hold
    recordings, demos of models that were published from here. With a data set only what belongs to it."""
    every = jobs.jobs(projects)
    own = jobs.of_dataset(every, dataset)
    runs = [job.name for job in own if (job.folder / "export").is_dir()]
    filled = [name for name in projects.datasets() if projects.dataset(name).manifest.exists()]
    published = {p.order.to: p.order.of for p in _on_hub(projects)}
    others = {job.name for job in every} - {job.name for job in own}
    return [
        *(("model", name) for name in runs),
        *(("dataset", name) for name in filled if dataset in (None, name)),
        *(("demo", name) for name in runs),
        *(("demo", to) for to, of in published.items() if of not in others),
    ]


def warning(projects: Projects, key: str) -> str:
    """Reason against publishing `what:of`; empty for most."""
    what, of = split_choice(key)
    job = next((job for job in jobs.jobs(projects) if job.name == of), None) if what != "dataset" else None
    return got_worse(job.folder) if job else ""


def _on_hub(projects: Projects) -> list[Publication]:
    """Models that were published from here. Demos are made of no others: the token reads what this person may not."""
    return [p for p in publications(projects) if p.order.what == "model" and state(p).state == "published"]


def has_adapters(projects: Projects, run: str) -> bool:
    """Whether a run exported adapters on a base, so that there is a choice between these and the whole model."""
    return any((jobs.find(projects, run).folder / "export").glob("adapter_*"))


def split_choice(key: str) -> tuple[What, str]:
    """(what, of) of `what:of`, as the page's list has it; of is empty for what is none."""
    kind, _, of = key.partition(":")
    return (kind, of) if kind in get_args(What) else ("model", "")  # type: ignore[return-value]


def suggested(key: str, user: str | None) -> str:
    """A name for the repository of `what:of`: that of the run or data set, under the user whose token it is."""
    what, of = split_choice(key)
    letters = unicodedata.normalize("NFKD", of.rpartition("/")[2]).encode("ascii", "ignore").decode()
    name = re.sub("[^A-Za-z0-9_-]+", "-", letters).strip("-_") if of else ""  # the Hub takes these only
    name = name or ("voice" if of else "")
    return f"{user}/{name}{'-demo' if what == 'demo' else ''}" if user and name else ""


def check_form(order: PublishOrder) -> None:
    """Raises ConfigError for an order that no run or data set could make right: nothing of the page reaches a path or a
    command before this."""
    if order.what not in get_args(What):
        raise ConfigError("Choose what is to be published first.")
    hub.Target(order.to, "space" if order.what == "demo" else order.what, order.private)
    if order.licence is not None and not LICENCE.fullmatch(order.licence):
        raise ConfigError(
            f"{order.licence[:80]!r} is no licence as the Hub spells it: letters, digits and -, such as cc-by-4.0."
        )


def checked(projects: Projects, order: PublishOrder) -> PublishOrder:
    """The order as it is. Raises ConfigError for anything that is not what it should be."""
    check_form(order)
    if order.what == "dataset":
        projects.dataset(order.of)
    elif not (order.what == "demo" and order.of in [p.order.to for p in _on_hub(projects)]):
        job = jobs.find(projects, order.of)
        if not (job.folder / "export").is_dir():
            raise ConfigError(f"The run {order.of} has no finished model yet: publish it when it has.")
    return order


def make_card(projects: Projects, order: PublishOrder) -> str:
    """The card as the command would write it. Raises as `checked`, and StentorError for what cannot be published."""
    checked(projects, order)
    with disk_errors(projects.tmp), tempfile.TemporaryDirectory(prefix="card-", dir=projects.tmp) as place:
        folder = Path(place)
        if order.what == "dataset":
            from stentor.publish.dataset import build

            write_bytes(folder / "manifest.jsonl", _manifest(projects, order.of))
            build([str(folder / "manifest.jsonl")], folder / "made", order.to, order.licence, link=True)
            return (folder / "made" / "README.md").read_text("utf-8")
        if order.what == "demo":
            from stentor.publish.space import card

            return card(_model(projects, order))
        from stentor.publish.model import make_card as written

        facts = hub.licence_of, hub.benchmark_task
        return written(_model(projects, order), folder, order.to, order.licence, None, order.merge, *facts)


def publish(projects: Projects, order: PublishOrder, card: str | None = None) -> Publication:
    """Start publishing, with a card that a person changed, or with the one that the command writes.

    Raises ConfigError for a person who may not publish here, for a wrong order, when the repository is being published
    to already (of two at once one starts), and when there is no token; StentorError when the disk is full.
    """
    require_permission(projects)
    checked(projects, order)
    if card is not None and len(card) > MOST_CARD:
        raise ConfigError(f"A card of {len(card)} characters is too long: at most {MOST_CARD}.")
    hub.token_or_refuse()
    return begin(projects, order, card)


def again(projects: Projects, publication: Publication) -> None:
    """The same once more, with the card as it was: what the Hub has is not sent again. Raises as `publish`."""
    path = publication.folder / "card.md"
    publish(projects, publication.order, path.read_text("utf-8") if path.exists() else None)


def publications(projects: Projects) -> list[Publication]:
    """All publications, that which was asked for last first."""
    candidates = [Publication(p.parent) for p in (projects.folder / "published").glob("*/publication.json")]
    return sorted((p for p in candidates if _readable(p)), key=lambda p: p.time, reverse=True)


def find(projects: Projects, name: str) -> Publication:
    """A publication by its id. Raises ConfigError."""
    publication = Publication(projects.folder / "published" / checked_name(name, "publication's name"))
    if not _readable(publication):
        raise ConfigError(f"There is no publication {name}.")
    return publication


def state(publication: Publication) -> PublicationStatus:
    """Where a publication stands, from its folder alone."""
    end = detached.ending(publication.folder)
    text = detached.tail(publication.folder / "output.txt")
    lines = "\n".join(text.splitlines()[-MOST_LINES:])
    if end.state == "finished":
        link = next((s for s in reversed(text.splitlines()) if s.startswith(PUBLISHED)), "").removeprefix(PUBLISHED)
        return PublicationStatus("published", "", link or None, lines)
    if end.state == "failed":
        # Its error is the sentence; there is no need to show it twice.
        before, error, _ = lines.rpartition("stentor: ")
        reason = end.reason.replace(AGAIN, say("publish_stopped_help"))
        return PublicationStatus("failed", reason, None, before.rstrip() if error else lines, end.exit == 1)
    return PublicationStatus(end.state, "", None, lines)


def card_to_send(order: PublishOrder, text: str, shown_card: tuple[PublishOrder, str] | None) -> str | None:
    """The card for an order: None, for the command to write it, where the person changed nothing in the one that was
    shown (`shown_card`: what it was written for, and its text); else theirs, for what the form says now."""
    if not text.strip() or shown_card is None:
        return text if text.strip() else None
    before, shown = shown_card
    if text.replace("\r\n", "\n").strip() == shown.strip() or (order.what, order.of) != (before.what, before.of):
        return None
    return retargeted(text, before, order)


def retargeted(card: str, old: PublishOrder, new: PublishOrder) -> str:
    """A card that a person changed, for another repository and licence than it was written for."""
    text = re.sub(rf"(?<![\w/.-]){re.escape(old.to)}(?![\w-])", lambda _: new.to, card) if old.to else card
    head, mark, body = text.partition("\n---\n")
    if new.licence in (None, old.licence) or not text.startswith("---\n") or not mark:
        return text
    return re.sub(r"\nlicense:.*", "", head) + f"\nlicense: {new.licence}" + mark + body


def require_permission(projects: Projects) -> None:
    """Raises ConfigError for a person who may not publish here."""
    if not projects.publishes:
        raise ConfigError(say("publish_closed"))


def begin(projects: Projects, order: PublishOrder, card: str | None = None) -> Publication:
    """`publish`, of an order that was permitted before. What is wrong by now, the command says."""
    checked(projects, order)
    name = f"{order.what}-{hashlib.blake2b(order.to.lower().encode(), digest_size=8).hexdigest()}"
    publication = Publication(projects.folder / "published" / name)
    with disk_errors(publication.folder):
        publication.folder.mkdir(parents=True, exist_ok=True)
    folder = publication.folder
    published = str(folder / "manifest.jsonl") if order.what == "dataset" else _model(projects, order)
    command = ["publish", order.what, published, "--to", order.to, "--private" if order.private else "--public"]
    if order.licence is not None and order.what != "demo":
        command += ["--license", order.licence]
    if order.merge and order.what == "model" and has_adapters(projects, order.of):
        command.append("--merge")
    if card is not None:
        command += ["--card", str(folder / "card.md")]
    with detached.exclusive(folder, f"{order.to} is being published already: wait for it, or stop it.") as lock:
        write_json(folder / "publication.json", {**asdict(order), "time": time.time()})
        if order.what == "dataset":
            write_bytes(folder / "manifest.jsonl", _manifest(projects, order.of))
        if card is not None:
            write_bytes(folder / "card.md", card.encode())
        else:
            (folder / "card.md").unlink(missing_ok=True)
        detached.launch(folder, [*detached.STENTOR, *command], lock, cwd=projects.folder)
    return publication


def _model(projects: Projects, order: PublishOrder) -> str:
    """The run's folder, or of a demo the Hub's id."""
    if order.what == "demo" and "/" in order.of:
        return order.of
    return str(jobs.find(projects, order.of).folder)


def _manifest(projects: Projects, name: str) -> bytes:
    """The manifest that is published: the recordings as the data set names them, each in its split.

    Every path was found to lie in the data set; keys of the studio's own are left out. Raises ConfigError for an empty
    data set and for a path that leads out of it.
    """
    dataset = projects.dataset(name)
    sides = dataset.sides()
    records = []
    for record in dataset.records():
        fields = {k: v for k, v in record.items() if k not in OWN_KEYS}
        split = "test" if sides.get(record["id"]) == "held_out" else "train"
        records.append({**fields, "audio_path": str(dataset.audio(record)), "split": split})
    if not records:
        raise ConfigError(f"The data set {name} holds no recordings: record or upload some first.")
    return record_lines(records)


def _readable(publication: Publication) -> bool:
    try:
        order: Any = publication.order
    except TypeError:  # not ours, or of another version
        return False
    return isinstance(order.to, str) and bool(hub.REPO.fullmatch(order.to)) and order.what in get_args(What)
