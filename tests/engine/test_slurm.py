"""The Slurm script is run for real, on two machines that are processes here, by stand-ins for srun and scontrol."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"
# Two tasks, one on each machine, with their ids; answers the highest exit code, as srun does.
SRUN = """\
#!{python}
import os, subprocess, sys
arguments = sys.argv[1:]
while arguments[0].startswith("-"):
    arguments.pop(0)
tasks = [
    subprocess.Popen(arguments, env={{**os.environ, "SLURM_PROCID": str(i), "SLURM_LOCALID": "0"}}) for i in range(2)
]
with open("{folder}/tasks", "w") as file:
    file.write(" ".join(str(task.pid) for task in tasks))
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """\
#!/bin/bash
echo "$@" >> {folder}/scontrol
if [ "$1 $2" = "show hostnames" ]; then printf '127.0.0.1\\nlocalhost\\n'; fi
"""
STENTOR = """\
#!/bin/bash
exec {python} -m stentor "$@"
"""


@pytest.fixture
def slurm(tmp_path):
    """Starts the script as Slurm would; `tasks` are the process ids on the machines."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("stentor", STENTOR)):
        (programs / name).write_text(text.format(python=sys.executable, folder=tmp_path))
        (programs / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "2",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
    }
    started = []

    def submit(*arguments: object) -> subprocess.Popen:
        script = subprocess.Popen(
            ["bash", str(SCRIPT), *map(str, arguments)],
            env={**{k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}, **job},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(script)
        return script

    submit.tasks = lambda: [int(pid) for pid in (tmp_path / "tasks").read_text().split()]
    submit.scontrol_log = lambda: (tmp_path / "scontrol").read_text()
    yield submit
    for script in started:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
        script.communicate()


def test_it_is_well_formed():
    text = SCRIPT.read_text()
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True, text=True).stderr == ""
    asked = [line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--requeue"} <= set(asked)
    assert "--signal=TERM@300" in asked, "to the tasks: with B: only the script would get it"
    head = text[: text.index("\ntrap")]
    assert all(line.startswith("#") or not line for line in head.splitlines()), "Slurm reads no option after a command"


@pytest.mark.slow
def test_it_is_stopped_requeued_and_ends(slurm, tiny, tmp_path, rows):
    folder = tmp_path / "runs" / "queued"
    config = [tiny(), "name=queued", "train.shard=true", "schedule.type=constant"]
    script = slurm(*config, "train.steps=100000")
    while not (folder / "metrics.jsonl").exists() or not rows(folder):
        assert script.poll() is None, script.communicate()
        time.sleep(0.1)
    for pid in slurm.tasks():
        os.kill(pid, signal.SIGTERM)
    out, _ = script.communicate(timeout=300)
    assert script.returncode == 75, out
    assert slurm.scontrol_log().splitlines()[-1] == f"requeue {os.getpid()}"
    stopped = rows(folder)[-1]["step"]
    assert [p.name for p in (folder / "checkpoints").glob("step-*")][-1:], out
    assert "2 processes (FSDP2" in out

    script = slurm(*config, f"train.steps={stopped + 2}")
    out, _ = script.communicate(timeout=300)
    assert script.returncode == 0, out
    assert f"Resuming from step {stopped} of {stopped + 2}" in out
    assert [row["step"] for row in rows(folder)] == list(range(1, stopped + 3))
    assert slurm.scontrol_log().count("requeue") == 1


@pytest.mark.long
def test_a_failure_is_not_queued_again(slurm, tiny):
    script = slurm(tiny(), "optim.lr=high")
    out, _ = script.communicate(timeout=300)
    assert script.returncode == 2, out
    assert "requeue" not in slurm.scontrol_log()
