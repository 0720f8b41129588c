"""state.json: its keys are those of all checkpoints so far, and go in and out unchanged."""

import json

from stentor.engine.state import TrainState

STATE = """
{"step": 7, "position": {"epoch": 1, "within": 2, "index": 6}, "next_index": 7, "batches_per_step": 1, "epoch": 1,
 "skipped": 0, "seconds": 1.5, "best": [{"step": 4, "value": 0.5}], "fingerprint": "ab", "optim": "adamw",
 "plateau": [0.5, 1, 1.0], "bad": {"c1": ["unreadable", "c1: gone"]}, "seen": 28, "evaluated": 4, "scaler": null,
 "callbacks": {"0-memory": {}}, "optimizer": {"weight|step": 7}, "lanes": [[0, [1, 2]]],
 "meter": {"sums": {"text": 1.0}, "counts": {"text": 3}, "norms": [0.5], "flops_per_slot": null}}
"""


def test_state_of_an_older_checkpoint():
    state = TrainState.from_dict(json.loads(STATE))
    assert (state.progress.step, state.progress.position["within"], state.batches_per_step) == (7, 2, 1)
    assert state.progress.bad == {"c1": ("unreadable", "c1: gone")} and state.meter["norms"] == [0.5]
    assert json.loads(json.dumps(state.as_dict())) == json.loads(STATE) | {
        "audio": {},
        "parts": [],
        "good": None,
        "first_loss": None,
        "texts": "",
    }
