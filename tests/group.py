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
    from stentor.engine.backend import build_backend
    from stentor.engine.device import Communicator, accelerator
    from stentor.engine.run_logger import RunLogger
    from stentor.engine.trainer import Trainer

    config = load(config, overrides).config
    device = accelerator(config.train)
    setup = prepare(config, lambda line: None)
    folder = Path(config.output) / config.name
    logger, communicator = RunLogger(folder, device.is_main_process), Communicator(device.num_processes)
    backend = build_backend(config, setup, device)
    trainer = Trainer(config, setup, backend, communicator, [], logger, folder / "checkpoints")
    model = setup.bundle.model

    def full_tensors():
        return ema.gather_full_tensors(ema.trained_tensors(model))

    ema.assign_tensors(model, {n: torch.zeros_like(t) for n, t in full_tensors().items()})
    if any(t.count_nonzero() for t in full_tensors().values()):
        return 8
    checkpoint = state.latest_checkpoint(trainer)
    state.load(trainer, checkpoint)
    weights = load_file(checkpoint / "resume" / "weights.safetensors")
    moments = load_file(checkpoint / "resume" / "optimizer.safetensors")
    loaded, (tensors, _) = full_tensors(), backend.optimizer_state()
    same_weights = loaded.keys() == weights.keys() and all(loaded[n].equal(weights[n]) for n in weights)
    same_moments = tensors.keys() == moments.keys() and all(tensors[n].equal(moments[n]) for n in moments)
    return 0 if weights and same_weights and same_moments else 9


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
