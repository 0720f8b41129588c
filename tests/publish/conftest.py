"""A run folder as training leaves it, with transcripts that try to break out of the page."""

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for page

EVIL = '<script>alert("boo")</script>'
SETS = ("dev", "unseen <voices>")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    from stentor.metrics.wer import score

    folder = tmp_path / "run"
    (folder / "predictions").mkdir(parents=True)
    evals = {}
    for name in SETS:
        pairs = [("one two three", "one two three"), ("four five", "four nine"), (f"six {EVIL}", f"{EVIL} {EVIL}")] * 4
        pairs[0] = ("", "one")
        speakers = ["ann", "ben", EVIL] * 4
        with (folder / "predictions" / f"{name}.jsonl").open("w") as file:
            for i, (reference, output) in enumerate(pairs):
                words = [{"word": w, "confidence": 0.25} for w in output.split()]
                record = {"id": f"{name}-{i}", "speaker": speakers[i], "voice": {"text": "one two"}}
                row = {
                    "id": f"{name}-{i}",
                    "reference": {"text": reference, "language": "en", "speaker": speakers[i]},
                    "output": {"text": output, "words": words, "ctc": output},
                    "seconds": 0.8,
                    "record": record,
                }
                file.write(json.dumps(row) + "\n")
        how = {"groups": {"speaker": speakers}}
        references, outputs = [r for r, _ in pairs], [o for _, o in pairs]
        evals[name] = {
            "wer": score(references, outputs, **how).as_dict(),
            "cer": score(references, outputs, unit="character").as_dict(),
        }
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(10, 1010, 10):
            row = {
                "step": step,
                "epoch": step / 100,
                "time": 1e9 + step,
                "train/loss": 5 * math.exp(-step / 200),
                "train/text": 4 * math.exp(-step / 200),
                "train/ctc": math.exp(-step / 200),
                "lr": 1e-3,
                "mfu": None,
                "grad_norm": 1.0 + step % 7,
                "padding": 0.04,
                "data_wait": 0.01,
                "audio_seconds_per_second": 300.0,
                "mine/<b>": 3.0,
            }
            file.write(json.dumps(row) + "\n")
            if step % 250 == 0:
                file.write(json.dumps({"step": step, **{f"eval/{n}/wer": 0.5 - step / 4000 for n in SETS}}) + "\n")
        file.write('{"step": 1010, "train/lo')  # killed while writing
    events = [
        {"event": "started", "step": 0},
        {"event": "skipped_step", "step": 7, "ids": [EVIL]},
        {"event": "finished", "step": 1000},
    ]
    lines = [json.dumps({"time": 1e9 + i, **e}) for i, e in enumerate(events)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    results = {
        "eval": evals,
        "data": {
            "used": 97,
            "hours": 0.25,
            "dropped": {"too_long": 2, "silent": 1},
            "named": {"silent": [f"a.wav {EVIL}"]},
            "eval": {"dev": {"dropped": {"unreadable": 1}, "named": {"unreadable": ["b.wav: not audio"]}}},
        },
        "parameters": {
            "total": 3000,
            "trained": 1000,
            "parts": {"encoder": {"total": 2000, "trained": 0}, "llm": {"total": 1000, "trained": 1000}},
        },
        "seconds": 75.0,
        "steps": 1000,
        "command": ["stentor", "train", "my run.yaml"],
        "environment": {"python": "3.11.9", "gpu": None, "processor": "Pentium", "packages": {"torch": "2.13.0"}},
    }
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "config.yaml").write_text(f"# {EVIL}\nname: fake\n")
    (folder / "resolved.yaml").write_text("name: fake\ntask: {type: transcribe}\nmodel: {type: speech_llm}\n")
    return folder
