"""`stentor serve` beside `transformers serve`, with the same weights of Whisper in one run.

    python benchmarks/serve_peer.py [MODEL] [--minutes 3] [--clients 32] [--rounds 2] [--data FOLDER]

MODEL is a folder of transformers; without one it is the Whisper of the development data (tiny's size). Both serve it in
float32 over loopback, each in a process of its own, and have answered once before a clock starts; the other one then
waits. In each round both have the same clips (as in benchmarks/serve.py), by so many clients and by one. The texts of
both must be equal, or it fails. `transformers serve` needs the package openai besides those of stentor[serve].
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from results import write
from servers import DATA, Server, clips_of, stentor_serve, transformers_serve

from serve import described, ratio, taken_in_turns, whisper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    clips = clips_of(args.data, args.minutes)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or whisper(args.data, Path(scratch))
        with stentor_serve(model) as server, transformers_serve(model) as peer:
            for clients in (args.clients, 1):
                rows += pair(Path(model).name, server, peer, clips, clients, args.rounds)
    facts = {"clips": len(clips), "rounds": args.rounds, "threads": torch.get_num_threads()}
    write("serve_peer", rows, **facts)


def pair(model: str, server: Server, peer: Server, clips: Any, clients: int, rounds: int) -> list[dict[str, Any]]:
    ways = {
        "stentor serve": partial(server.ask_all, clips, clients),
        "transformers serve": partial(peer.ask_all, clips, clients),
    }
    for one in (server, peer):
        one.ask_all(clips[:2], 1)
    runs = taken_in_turns(ways, rounds)
    rows = [{**row, "clients": clients} for row in described(model, runs, clips)]
    ratio(rows[0], "times_transformers_serve", runs["transformers serve"], runs["stentor serve"])
    return rows


if __name__ == "__main__":
    main()
