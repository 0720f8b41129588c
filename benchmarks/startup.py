"""Start-up time of the command line: ours beside `accelerate --help` and a bare `import torch`, in one run.

    python benchmarks/startup.py [--rounds 10]

Every command runs in a fresh process, all in turn in each round; medians of wall and CPU seconds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from results import write

BIN = Path(sys.executable).parent
RECIPE = Path(__file__).parents[1] / "recipes" / "voxlm_05b.yaml"
TARGET = 0.3
COMMANDS = {
    "stentor --help": [BIN / "stentor", "--help"],
    "stentor config check RECIPE": [BIN / "stentor", "config", "check", RECIPE],
    "accelerate --help": [BIN / "accelerate", "--help"],
    'python -c "import torch"': [sys.executable, "-c", "import torch"],
    'python -c "import transformers"': [sys.executable, "-c", "import transformers"],
    "python -c pass": [sys.executable, "-c", "pass"],
}


def spent(command: list) -> tuple[float, float]:
    """Wall and CPU seconds (user and system, children included) of one process."""
    began = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    if status:
        raise SystemExit(f"{command}: exit status {status}\n{process.stderr.read().decode()}")
    return wall, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for number in range(args.rounds + 1):
        for name, command in COMMANDS.items():
            one = spent(command)
            if number:  # the first round fills the disk cache
                times[name].append(one)
    rows = []
    for name, pairs in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*pairs))
        rows.append({"command": name, "wall": round(wall, 3), "cpu": round(cpu, 3)})
    peer = next(r for r in rows if r["command"] == "accelerate --help")
    print(f"{'command':34} {'wall':>8} {'CPU':>8}   accelerate --help takes")
    for row in rows:
        row["ratio"] = round(peer["wall"] / row["wall"], 1)
        print(f"{row['command']:34} {row['wall']:6.2f} s {row['cpu']:6.2f} s {row['ratio']:10.1f} x as long")
    ours = max(row["wall"] for row in rows if row["command"].startswith("stentor"))
    print(f"\nTarget for ours: {TARGET} s; {'met' if ours <= TARGET else 'missed'} ({ours:.2f} s).")
    write("startup", rows, rounds=args.rounds, target_seconds=TARGET)


if __name__ == "__main__":
    main()
