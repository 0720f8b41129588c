"""Work after a training that has finished well: its model is published, then a demo of it.

    runs/NAME/afterwards/orders.json  what a person asked for before the start: orders of publish_jobs.py
    runs/NAME/afterwards/...          the files of detached.py

The run's supervisor starts this as a process of its own, whether a page or the studio is open or not. Each publication
has its folder, as those of step Publish; where the Hub did not answer, it is repeated after each of `WAITS`.
"""

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError, StentorError
from stentor.publish import hub
from stentor.studio.files import read_json
from stentor.studio.projects import Projects
from stentor.studio.runs import detached, publish_jobs
from stentor.studio.runs.jobs import RunStatus
from stentor.studio.runs.judgement import got_worse
from stentor.studio.runs.publish_jobs import PublishOrder
from stentor.studio.runs.supervisor import AFTERWARDS
from stentor.studio.texts import say

WAITS = (60.0, 300.0, 1800.0)
"""Seconds before a publication that the Hub did not answer is repeated."""
_LOOK = 0.5


def ordered(projects: Projects, model: PublishOrder, demo: str | None) -> dict[str, Any]:
    """Orders that `jobs.start` leaves with a run: its model is published, then a demo of it as `demo` (USER/REPO), with
    the same visibility. Raises ConfigError for what cannot be published, before anything is trained."""
    orders = [model, *([PublishOrder("demo", model.to, demo, model.private)] if demo else [])]
    for order in orders:
        publish_jobs.check_form(order)
    publish_jobs.require_permission(projects)
    hub.token_or_refuse()
    return {"orders": [asdict(order) for order in orders]}


def orders_of(run: Path) -> list[PublishOrder]:
    """Orders of a run; none for most."""
    return [PublishOrder(**order) for order in read_json(run / AFTERWARDS / "orders.json").get("orders", [])]


def sentence(run: Path, now: RunStatus) -> str:
    """State of a run's orders, for a person; empty without any."""
    orders = orders_of(run)
    if not orders:
        return ""
    to = say("and").join(order.to for order in orders)
    if now.alive:
        return say("after_waits" if orders[0].private else "after_waits_public", to=to)
    end = detached.ending(run / AFTERWARDS)
    if end.alive:
        return say("after_works", to=to)
    if now.state != "finished":
        return say("after_worse" if now.state == "worse" else "after_unfinished", to=to)
    return say("after_done", to=to) if end.state == "finished" else say("after_failed", to=to, why=end.reason)


def main(run: str) -> None:
    """Entry point of the process: `python -m stentor.studio.runs.afterwards RUN`."""
    folder = Path(run)
    if worse := got_worse(folder):
        raise ConfigError(worse)
    projects = Projects(folder.parents[1])
    for order in orders_of(folder):
        publication = publish_jobs.begin(projects, order)
        for wait in (*WAITS, None):
            while (now := publish_jobs.state(publication)).alive:
                time.sleep(_LOOK)
            if now.state == "published":
                print(f"{publish_jobs.PUBLISHED}{now.link}", flush=True)
                break
            if wait is None or not now.passing:
                raise StentorError(now.sentence or say("publish_stopped", to=order.to))
            print(f"{now.sentence} Tried again in {wait:g} s.", flush=True)
            time.sleep(wait)
            publish_jobs.begin(projects, order)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except StentorError as problem:
        print(f"stentor: {problem}", flush=True)
        sys.exit(problem.exit_code)
