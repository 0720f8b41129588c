"""Step 5 without its widgets: what may be asked for, what is sent, and how a publication is found again."""

import json
import os
import threading

import numpy as np
import pytest
from stand_in import until

from stentor.errors import ConfigError
from stentor.studio.files import write_json
from stentor.studio.projects import Projects
from stentor.studio.runs import detached, machine, publish_jobs
from stentor.studio.runs.machine import HubAccount, account
from stentor.studio.runs.publish_jobs import PublishOrder, card_to_send, make_card, publish, retargeted

CANARY = "hf_CanaryCanaryCanary77"
RATE = 16000


@pytest.fixture
def voice(projects):
    """A data set of four recordings, one of them held out."""
    dataset = projects.create("voice", "en")
    for i in range(4):
        tone = np.sin(2 * np.pi * 200 * (i + 1) * np.arange(RATE // 2) / RATE)
        dataset.add((0.2 * tone).astype(np.float32), RATE, f"text {i}", speaker="Anna", prompt=f"p{i}")
    dataset.parts()
    return dataset


def test_what_can_be_published(projects, voice, run):
    assert publish_jobs.offers(projects) == [("model", "first"), ("dataset", "voice"), ("demo", "first")]
    assert not publish_jobs.has_adapters(projects, "first")
    assert publish_jobs.split_choice("model:first") == ("model", "first")
    assert publish_jobs.split_choice("--merge") == publish_jobs.split_choice("other:x") == ("model", "")
    assert publish_jobs.suggested("demo:first", "anna") == "anna/first-demo"
    assert publish_jobs.suggested("demo:ben/voice", "anna") == "anna/voice-demo"
    assert publish_jobs.suggested("model:first", None) == ""


def test_what_belongs_to_a_data_set(projects, voice, run):
    projects.create("other", "en")
    write_json(projects.runs / "first" / "studio.json", {"created": 1.0, "copies": {"t": str(voice.manifest)}})
    everything = [("model", "first"), ("dataset", "voice"), ("demo", "first")]
    assert publish_jobs.offers(projects, "voice") == publish_jobs.offers(projects) == everything
    assert publish_jobs.offers(projects, "other") == []


def test_a_run_that_got_worse_is_published_with_a_warning(projects, run):
    assert publish_jobs.warning(projects, "model:first") == publish_jobs.warning(projects, "") == ""
    scores = [{"held_out": {"wer": {"value": value}}} for value in (0.1, 0.9)]
    write_json(projects.runs / "first" / "results.json", {"before": scores[0], "eval": scores[1]})
    for key in ("model:first", "demo:first"):
        assert "WER on held_out 10.00 % before, 90.00 % after" in publish_jobs.warning(projects, key)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (PublishOrder("model", "first", "no-slash"), "USER/REPO"),
        (PublishOrder("model", "../first", "anna/x"), "no run"),
        (PublishOrder("model", "--merge", "anna/x"), "no run"),
        (PublishOrder("model", "none", "anna/x"), "no run none"),
        (PublishOrder("demo", "../../etc/x", "anna/x"), "no run"),
        (PublishOrder("demo", "ben/private", "anna/x"), "no run"),  # nobody published it from here
        (PublishOrder("dataset", "../voice", "anna/x"), "cannot be the data set's name"),
        (PublishOrder("dataset", "none", "anna/x"), "no data set none"),
        (PublishOrder("model", "first", "anna/x", licence="--public"), "no licence"),
        (PublishOrder("model", "first", "anna/x", licence="mit\nx: y"), "no licence"),
        (PublishOrder("token", "first", "anna/x"), "Choose what"),
    ],
)
def test_nothing_of_the_page_reaches_a_command_unchecked(projects, run, hub, order, message):
    for ask in (publish, make_card):
        with pytest.raises(ConfigError, match=message):
            ask(projects, order)
    assert not (projects.folder / "published").exists() and not hub.repos


def test_the_manifest_that_is_sent(projects, voice):
    rows = [json.loads(line) for line in publish_jobs._manifest(projects, "voice").splitlines()]
    sides = voice.sides()
    assert [r["split"] for r in rows] == [{"train": "train", "held_out": "test"}[sides[r["id"]]] for r in rows]
    assert {r["split"] for r in rows} == {"train", "test"}
    assert all("prompt" not in r and os.path.isfile(r["audio_path"]) for r in rows)
    with voice.manifest.open("a") as file:
        file.write(json.dumps({"id": "x", "audio_path": "audio/../../../run.yaml", "text": "x"}) + "\n")
    with pytest.raises(ConfigError, match=r"without \.\."):
        publish_jobs._manifest(projects, "voice")
    projects.create("empty")
    with pytest.raises(ConfigError, match="no recordings"):
        publish_jobs._manifest(projects, "empty")


def test_a_data_set_alone(projects, voice, hub, at_once):
    order = PublishOrder("dataset", "voice", f"{hub.user}/voice", licence="cc-by-4.0")
    text = make_card(projects, order)
    assert "license: cc-by-4.0" in text and f"{hub.user}/voice" in text and not list(projects.tmp.iterdir())
    publication = publish(projects, order, text + "\nMore.\n")
    status = publish_jobs.state(publication)
    repo = hub.repos[f"datasets/{hub.user}/voice"]
    assert status.state == "published" and status.link == f"{hub.endpoint}/datasets/{hub.user}/voice"
    assert repo.private and repo.files["README.md"].decode().rstrip().endswith("More.")
    assert sum(name.endswith(".wav") for name in repo.files) == 4
    assert publish_jobs.publications(projects) == [publication] and publication.order == order
    assert publish_jobs.find(projects, publication.folder.name) == publication
    with pytest.raises(ConfigError, match="cannot be"):
        publish_jobs.find(projects, "../runs/first")


def test_a_model_and_its_demo(projects, run, hub, at_once):
    model = publish(projects, PublishOrder("model", "first", f"{hub.user}/first", licence="mit", private=False))
    assert publish_jobs.state(model).state == "published" and not hub.repos[f"{hub.user}/first"].private
    assert "--public" in at_once[0] and not any(hub.token in word for word in at_once[0])
    assert ("demo", f"{hub.user}/first") in publish_jobs.offers(projects)
    assert make_card(projects, PublishOrder("demo", "first", f"{hub.user}/demo")).startswith("---\ntitle: first")
    demo = publish(projects, PublishOrder("demo", f"{hub.user}/first", f"{hub.user}/demo"))
    assert publish_jobs.state(demo).state == "published", publish_jobs.state(demo)
    assert f"{hub.user}/first" in hub.repos[f"spaces/{hub.user}/demo"].files["space.json"].decode()


def test_publish_again_goes_on(projects, voice, hub, at_once, monkeypatch):
    from stentor.publish import hub as publishing

    monkeypatch.setattr(publishing, "WAITS", [])
    order = PublishOrder("dataset", "voice", f"{hub.user}/voice")
    hub.fail(503, "/commit/", times=None, message="out of order")
    publication = publish(projects, order, "---\nlicense: mit\n---\n# Mine\n")
    status = publish_jobs.state(publication)
    assert status.state == "failed" and status.sentence.count("\n") == 0 and "out of order" in status.sentence
    assert "Sending" in status.lines and "out of order" not in status.lines
    sent = len(hub.asked("^PUT"))
    hub.faults.clear()
    publish_jobs.again(projects, publication)
    assert publish_jobs.state(publication).state == "published"
    assert sent == 4 and len(hub.asked("^PUT")) == 4  # the recordings were there already
    assert b"# Mine" in hub.repos[f"datasets/{hub.user}/voice"].files["README.md"]


def test_one_at_a_time(projects, voice, hub, at_once, monkeypatch):
    monkeypatch.setattr(detached, "_PATIENCE", 0.05)
    order = PublishOrder("dataset", "voice", f"{hub.user}/voice")
    publication = publish(projects, order)
    with detached.exclusive(publication.folder, "busy"):
        assert publish_jobs.state(publication).state == "running"
        for other in (order, PublishOrder("dataset", "voice", f"{hub.user.upper()}/Voice")):
            with pytest.raises(ConfigError, match="being published already"):
                publish(projects, other)
        with pytest.raises(ConfigError, match="being published already"):
            publish_jobs.again(projects, publication)
    assert publication.order == order


def test_without_a_token(projects, voice, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert account() == HubAccount(False)
    with pytest.raises(ConfigError, match=r"hf auth login"):
        publish(projects, PublishOrder("dataset", "voice", "anna/voice"))
    assert not (projects.folder / "published").exists()


def test_who_may_publish(projects, voice, hub, at_once):
    order = PublishOrder("dataset", "voice", f"{hub.user}/voice")
    publication = publish(projects, order)
    guest = Projects(projects.folder, guarded=True, publishes=False)
    asked = len(hub.requests)
    for ask in (lambda: publish(guest, order), lambda: publish_jobs.again(guest, publication)):
        with pytest.raises(ConfigError, match="not open to you"):
            ask()
    assert len(hub.requests) == asked and len(at_once) == 1


def test_whose_token_it_is(projects, hub, monkeypatch):
    monkeypatch.setattr(machine, "_accounts", {})
    hub.pull()
    assert account() == HubAccount(True)
    hub.plug()
    assert account() == HubAccount(True)  # asked again after a minute only
    monkeypatch.setattr(machine, "_accounts", {})
    assert account() == HubAccount(True, hub.user)
    asked = len(hub.asked("whoami"))
    here = machine.this_machine(projects)
    assert here.account == HubAccount(True, hub.user) and len(hub.asked("whoami")) == asked
    assert here.cores >= 1 and not here.asking
    assert machine.this_machine(Projects(projects.folder, guarded=True, publishes=False)).account is None


def test_a_hub_that_does_not_answer_holds_nothing_up(projects, hub, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(machine, "_accounts", {})
    monkeypatch.setattr(machine.hub, "account", lambda: answered.wait(20) and "anna")
    assert machine.this_machine(projects).asking and account(0.0) == HubAccount(True, asking=True)
    answered.set()
    assert account() == HubAccount(True, "anna")


def test_no_token_in_what_is_left_behind(projects, voice, run, hub, at_once, monkeypatch):
    """Neither that of the environment nor what the Hub repeats of it."""
    hub.tokens[CANARY] = "write"
    monkeypatch.setenv("HF_TOKEN", CANARY)
    hub.fail(400, "/commit/", message=f"you sent {CANARY}")
    failed = publish(projects, PublishOrder("dataset", "voice", f"{hub.user}/voice"))
    assert "***" in publish_jobs.state(failed).sentence
    publish(projects, PublishOrder("model", "first", f"{hub.user}/first"))
    assert {r.token for r in hub.requests if r.path.startswith("/api")} == {CANARY}  # it was used
    written = [p.read_bytes() for p in projects.folder.rglob("*") if p.is_file()]
    sent = [content for repo in hub.repos.values() for content in repo.files.values()]
    assert len(written) > 20 and sent
    assert not [data for data in [*written, *sent] if CANARY.encode() in bytes(data)]
    assert CANARY not in str(at_once) + publish_jobs.state(failed).lines + publish_jobs.state(failed).sentence


def test_a_card_follows_the_form_until_somebody_changes_it():
    order = PublishOrder("model", "first", "anna/first", licence="mit")
    text = '---\nlicense: mit\n---\n\n# first\n\nstentor.load("anna/first") not anna/first-2\n'
    assert [card_to_send(order, t, (order, text)) for t in (text, text.replace("\n", "\r\n"), "")] == [None] * 3
    assert card_to_send(order, text + "more", (order, text)) == text + "more"
    other = PublishOrder("model", "first", "acme/voice", licence="cc0-1.0")
    changed = card_to_send(other, text + "more", (order, text))
    assert 'load("acme/voice") not anna/first-2' in changed and "license: cc0-1.0" in changed and "mit" not in changed
    assert card_to_send(PublishOrder("dataset", "voice", "a/b"), text + "more", (order, text)) is None
    assert "license: mit" in retargeted("---\nlanguage: en\n---\n# x\n", PublishOrder("model", "x", "a/x"), order)


@pytest.mark.slow
def test_it_outlives_the_studio(projects, voice, hub, monkeypatch):
    """Real processes: one that fails, then the same again."""
    monkeypatch.setenv("PYTHONPATH", hub.fresh["PYTHONPATH"])
    hub.fail(403, "/commit/", message="not today")
    publication = publish(projects, PublishOrder("dataset", "voice", f"{hub.user}/voice"))
    until(lambda: not publish_jobs.state(publication).alive, 120)
    assert publish_jobs.state(publication).state == "failed" and "not today" in publish_jobs.state(publication).sentence
    publish_jobs.again(projects, publication)
    until(lambda: not publish_jobs.state(publication).alive, 120)
    status = publish_jobs.state(publication)
    assert status.state == "published" and f"{hub.user}/voice" in status.link, status
    assert len(hub.asked("^PUT")) == 4
