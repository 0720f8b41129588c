"""Several `stentor ...` commands in one group of processes, whose start takes longer than they do. For warm.py and:

`python -m torch.distributed.run ... group.py COMMANDS.json`: a list of argument lists. A command `zeroed RUN.yaml
[key=value ...]` puts the run's newest checkpoint into a model of zeros and compares.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch


def zeroed(config: Path, overrides: list[str]) -> int:
    """0 when a trainer whose weights are all zero holds, after loading, what the newest checkpoint of its run holds."""
    from stentor.commands.train import prepare
    from stentor.config.load import load
    from stentor.engine import ema, restore
    from stentor.engine.backend import Backend
    from stentor.engine.device import Communicator, accelerator
    from stentor.engine.run_logger import RunLogger
    from stentor.engine.sharding import TensorShard
    from stentor.engine.tensor_files import StoredTensors, save_shards
    from stentor.engine.trainer import Trainer

    def full(tensor):
        return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).cpu().clone()

    config = load(config, overrides).config
    device = accelerator(config.train)
    setup = prepare(config, lambda line: None)
    folder = Path(config.output) / config.name
    logger, communicator = RunLogger(folder, device.is_main_process), Communicator(device.num_processes)
    backend = Backend(config.optim, config.train, setup, device)
    trainer = Trainer(config, setup, backend, communicator, [], logger, folder / "checkpoints")
    model = setup.bundle.model

    def full_tensors():
        return {n: full(t) for n, t in ema.trained_tensors(model).items()}

    zeros = Path(tempfile.mkdtemp())
    shards = {n: TensorShard(torch.zeros_like(t), t.shape) for n, t in full_tensors().items()}
    ema.read_weights(model, StoredTensors([save_shards(zeros, "weights", shards)]))
    if any(t.count_nonzero() for t in full_tensors().values()):
        return 8
    checkpoint = restore.latest_checkpoint(trainer)
    restore.load(trainer, checkpoint)
    weights, moments = (StoredTensors.of(checkpoint / "resume", kind) for kind in ("weights", "optimizer"))
    loaded, (tensors, _) = full_tensors(), backend.optimizer_state()
    same_weights = loaded.keys() == set(weights) and all(loaded[n].equal(weights.rows(n)) for n in weights)
    same_moments = all(
        s.data.equal(moments.rows(n, s.first, s.first + len(s.data) if s.data.ndim else 1)) for n, s in tensors.items()
    )
    written = set().union(*communicator.gather(set(tensors)))
    return 0 if len(weights) and same_weights and same_moments and written == set(moments) else 9


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
