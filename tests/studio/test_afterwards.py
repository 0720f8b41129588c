"""What follows a training: publishing its model and a demo, without page and studio."""

import shutil

import pytest
from stand_in import YAML, ended, until

from stentor.errors import ConfigError, StentorError
from stentor.studio.files import write_json
from stentor.studio.projects import Projects
from stentor.studio.runs import afterwards, detached, jobs, publish_jobs, watch
from stentor.studio.runs.afterwards import ordered, sentence
from stentor.studio.runs.publish_jobs import PublishOrder


@pytest.fixture
def model(projects, run, tmp_path, train):
    """The stand-in for a training leaves a model."""
    (projects.runs / "first").rename(tmp_path / "model")
    (tmp_path / "model" / "studio.json").unlink()
    (tmp_path / "model" / "ending.json").unlink()
    train("model")
    return tmp_path / "model"


def start(projects, hub, **order):
    model = PublishOrder("model", "first", f"{hub.user}/first", **order)
    return jobs.start(projects, YAML, then=ordered(projects, model, f"{hub.user}/first-demo"))


def test_the_model_and_its_demo_are_published_when_the_training_has_finished(projects, hub, model):
    job = start(projects, hub)
    assert ended(job).state == "finished"
    end = until(lambda: (end := detached.ending(job.folder / "afterwards")).exit is not None and end, 180)
    assert end.exit == 0, end.message
    assert {name: repo.private for name, repo in hub.repos.items()} == {
        f"{hub.user}/first": True,
        f"spaces/{hub.user}/first-demo": True,
    }
    assert "Published as tester/first and tester/first-demo" in watch.view(projects, job).status


def test_a_hub_that_does_not_answer_is_tried_again(projects, hub, model, at_once, monkeypatch):
    shutil.copytree(model, projects.runs / "first")
    write_json(projects.runs / "first" / "studio.json", {"created": 1.0})
    order = PublishOrder("model", "first", f"{hub.user}/first")
    (projects.runs / "first" / "afterwards").mkdir()
    write_json(projects.runs / "first" / "afterwards" / "orders.json", ordered(projects, order, None))
    monkeypatch.setattr(afterwards, "WAITS", (0.0, 0.0))
    hub.pull()
    with pytest.raises(StentorError, match="connection to the Hugging Face Hub failed"):
        afterwards.main(str(projects.runs / "first"))
    (publication,) = publish_jobs.publications(projects)
    assert len(at_once) == 3 and publish_jobs.state(publication).state == "failed"
    hub.plug()
    publish_jobs.again(projects, publication)
    assert publish_jobs.state(publication).state == "published"


def test_no_training_that_failed_or_got_worse_is_published(projects, hub, model, train):
    train("fail")
    job = start(projects, hub)
    assert ended(job).state == "failed" and "did not finish" in sentence(job.folder, jobs.state(job))
    train("model")
    scores = [{"held_out": {"wer": {"value": value}}} for value in (0.1, 0.9)]
    write_json(model / "results.json", {"before": scores[0], "eval": scores[1]})
    jobs.resume(projects, job)
    assert ended(job).state == "worse"
    end = until(lambda: (end := detached.ending(job.folder / "afterwards")).exit is not None and end, 180)
    assert end.exit == 2 and "made the model worse" in end.message
    assert "made the model worse" in sentence(job.folder, jobs.state(job)) and not hub.repos


def test_what_cannot_be_published_is_refused_before_the_start(projects, hub, monkeypatch):
    order = PublishOrder("model", "first", f"{hub.user}/first")
    for wrong in (PublishOrder("model", "first", "no-slash"), PublishOrder("model", "first", "a/b", licence="--x")):
        with pytest.raises(ConfigError):
            ordered(projects, wrong, None)
    with pytest.raises(ConfigError):
        ordered(projects, order, "no-slash")
    with pytest.raises(ConfigError, match="not open to you"):
        ordered(Projects(projects.folder, guarded=True, publishes=False), order, None)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match="no token"):
        ordered(projects, order, None)
