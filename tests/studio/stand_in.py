"""A stand-in for `stentor train`, which does as it does in a moment, and what tests of runs need beside it."""

import json
import time

from stentor.studio.runs import detached
from stentor.studio.runs.jobs import state

STAND_IN = '''\
"""Does as `stentor train RUN.yaml` does, in a moment: what to do stands beside it in `do`."""
import json, os, shutil, signal, sys, time
from pathlib import Path

run = Path(sys.argv[1])
folder, do = run.parent, Path(__file__).with_name("do").read_text().split()
with open(Path(__file__).with_name("starts"), "a") as file:
    file.write(f"{run.parent.name} {os.getpid()}\\\\n")

def tell(name, **fields):
    with open(folder / "events.jsonl", "a") as file:
        file.write(json.dumps({"time": time.time(), "event": name, **fields}) + "\\\\n")

def saved(number, frame):
    tell("stopped", step=3)
    print("stentor: Stopped by a signal at step 3 of 6", file=sys.stderr)
    sys.exit(75)

signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in do else saved)
print("token", os.environ.get("CANARY_TOKEN"), flush=True)
if "wait" in do:
    tell("started", step=0, total_steps=6)
    with open(folder / "metrics.jsonl", "a") as file:
        for step in (1, 2):
            file.write(json.dumps({"step": step, "time": time.time(), "train/loss": 1 / step}) + "\\\\n")
    (folder / "ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
if "fail" in do:
    print("loading\\\\nstentor: The GPU is out of memory:\\\\nset data.batch_tokens lower.", file=sys.stderr)
    sys.exit(1)
if "model" in do:
    shutil.copytree(Path(__file__).with_name("model"), folder, dirs_exist_ok=True)
tell("finished", step=6)
'''.replace("\\\\", "\\")

YAML = """\
# mine
name: first
task: {type: transcribe}
model: {type: ctc}
data: {train: [{type: jsonl, path: /nowhere/train.jsonl}]}
"""


def until(true, seconds=60):
    """Waits for something that another process brings about."""
    for _ in range(seconds * 50):
        if value := true():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come")


def ended(job):
    until(lambda: not state(job).alive)
    return state(job)


def starts(tmp_path):
    return (tmp_path / "starts").read_text().split("\n")[:-1] if (tmp_path / "starts").exists() else []


def process_of(job):
    return until(lambda: detached.process(job.folder))


def exported(projects, name, model, task=None, exit=0, folder="export", **config):
    """A run as the studio leaves it; its export has configs and no weights."""
    run = projects.runs / name
    export = run / folder
    export.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    training = {"name": name, "task": task or {"type": "transcribe", "normalizer": "none"}, "model": model, **config}
    (export / "training_config.json").write_text(json.dumps(training))
    (run / "resolved.yaml").write_text("{}")
    (run / "studio.json").write_text(json.dumps({"created": time.time()}))
    if exit is not None:
        (run / "ending.json").write_text(json.dumps({"started": 1, "exit": exit, "time": 2}))
    return export
