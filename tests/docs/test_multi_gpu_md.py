"""The commands of docs/multi_gpu.md are such that the launchers understand them."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "multi_gpu.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
]


def of(program: str) -> list[list[str]]:
    return [command[1:] for command in COMMANDS if command[0] == program]


@pytest.mark.parametrize("arguments", of("torchrun"), ids=" ".join)
def test_torchrun_understands(arguments):
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(arguments)
    assert parsed.module and parsed.training_script == "stentor"
    assert parsed.training_script_args[:1] == ["train"] and parsed.shutdown_timeout > 30


@pytest.mark.parametrize("arguments", of("accelerate"), ids=" ".join)
def test_accelerate_understands(arguments):
    from accelerate.commands.launch import launch_command_parser

    assert arguments[0] == "launch"
    parsed = launch_command_parser().parse_args(arguments[1:])
    assert parsed.multi_gpu and parsed.module and parsed.training_script == "stentor"
    assert parsed.num_processes % parsed.num_machines == 0 if parsed.num_machines else True


def test_both_are_told_for_several_machines():
    assert any("--nnodes" in c for c in of("torchrun")) and any("--num_machines" in c for c in of("accelerate"))
    scripts = [word for c in of("sbatch") for word in c if word.endswith(".sbatch")]
    assert scripts and all((Path(__file__).parents[2] / script).is_file() for script in scripts)
