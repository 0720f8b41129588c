"""Several `stentor ...` commands in one group of processes, whose start takes longer than they do. For warm.py and:

`python -m torch.distributed.run ... group.py COMMANDS.json`: a list of argument lists. A command `zeroed RUN.yaml
[key=value ...]` puts the run's newest checkpoint into a model of zeros and compares.
"""

import json
import sys
from pathlib import Path

import torch


def zeroed(config: Path, overrides: list[str]) -> int:
    """0 when a trainer whose weights are all zero holds, after loading, what the newest checkpoint of its run holds."""
    from safetensors.torch import load_file

    from stentor.commands.train import prepare
    from stentor.config.load import load
    from stentor.engine import ema, state
    from stentor.engine.device import Communicator, accelerator
    from stentor.engine.optim import optimizer_state
    from stentor.engine.run_logger import RunLogger
    from stentor.engine.trainer import Trainer

    config = load(config, overrides).config
    device = accelerator(config.train)
    ready = prepare(config, lambda line: None)
    folder = Path(config.output) / config.name
    trainer = Trainer(
        config,
        ready.bundle,
        ready.task,
        ready.losses,
        ready.plan,
        ready.evals,
        [],
        RunLogger(folder, device.is_main_process),
        device,
        Communicator(device.num_processes),
        folder / "checkpoints",
        ready.feed.dropped,
        ready.feed.records,
        ready.batches_per_epoch,
        ready.feed.fingerprint(ready.plan),
    )
    model = trainer.bundle.model
    ema.put(model, {n: torch.zeros_like(t) for n, t in ema.whole(ema.trained(model)).items()})
    if any(t.count_nonzero() for t in ema.whole(ema.trained(model)).values()):
        return 8
    found = state.latest_checkpoint(trainer)
    state.load(trainer, found)
    weights = load_file(found / "resume" / "weights.safetensors")
    moments = load_file(found / "resume" / "optimizer.safetensors")
    own = ema.whole(ema.trained(model))
    if trainer.zero:
        tensors, _ = trainer.zero.optimizer_state()
    else:
        tensors, _ = optimizer_state([o.optimizer for o in trainer.optimizers], model)
    same = own.keys() == weights.keys() and all(own[n].equal(weights[n]) for n in weights)
    return (
        0
        if same and weights and tensors.keys() == moments.keys() and all(tensors[n].equal(moments[n]) for n in moments)
        else 9
    )


def one_after_the_other(commands: list[list[str]]) -> int:
    """0, or the exit code of the first command that failed."""
    from stentor.cli import main as stentor

    torch.set_num_threads(1)
    for number, command in enumerate(commands):
        code = zeroed(Path(command[1]), command[2:]) if command[0] == "zeroed" else stentor(command)
        if code:
            print(f"command {number} ({' '.join(command)}): exit {code}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(one_after_the_other(json.loads(Path(sys.argv[1]).read_text())))
