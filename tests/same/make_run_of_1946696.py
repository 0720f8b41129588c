"""Makes `run_of_1946696`: a run of commit 1946696, cut off after the checkpoint of step 4, and what became of it.

    git worktree add ../before 1946696
    PYTHONPATH=../before/src OMP_NUM_THREADS=1 python tests/same/make_run_of_1946696.py

`expected.json` holds the training rows of steps 5 and 6, the final answers, and what the export of step 4 answers to a
sentence of the built-in voice. tests/same/test_before_same.py resumes the run and loads the export with today's code.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import stentor
from stentor.audio.synth import say

FOLDER = Path(__file__).with_name("run_of_1946696")
SENTENCE = {"text": "four two nine", "voice": "en-us", "speed": 160, "pitch": 50}
ROWS = ("step", "loss", "train/text", "train/ctc", "lr", "grad_norm")


def rows(run: Path) -> list[dict[str, float]]:
    """What training measured at steps 5 and 6."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: row[k] for k in ROWS if k in row} for row in lines if row["step"] > 4 and "train/text" in row]


def answers(run: Path) -> list[dict[str, object]]:
    """The final answers about the evaluation set."""
    lines = (run / "predictions" / "dev.jsonl").read_text().splitlines()
    predictions = [json.loads(line) for line in lines]
    return [{"id": p["id"], "text": p["output"]["text"], "log_prob": p["output"]["log_prob"]} for p in predictions]


def main() -> None:
    """Train to the end, note what came out, keep the checkpoint of step 4."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(FOLDER / "config.yaml", place)
        subprocess.run([sys.executable, "-m", "stentor", "train", "config.yaml"], cwd=place, check=True)
        run = Path(place, "runs", "run")
        checkpoint = run / "checkpoints" / "step-000004"
        transcript = stentor.load(checkpoint / "export", "cpu").transcribe(say(**SENTENCE).audio, 16000)
        expected = {"rows": rows(run), "answers": answers(run), "segments": transcript["segments"]}
        (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        target = FOLDER / "checkpoints" / "step-000004"
        shutil.rmtree(target.parent, ignore_errors=True)
        shutil.copytree(checkpoint, target)
        (FOLDER / "checkpoints" / "latest").write_text("step-000004\n")
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (FOLDER / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= 4))


if __name__ == "__main__":
    main()
