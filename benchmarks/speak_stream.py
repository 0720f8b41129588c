"""The first audio of a stream beside waiting for all of a text: seconds by the clock and of the processor.

    python benchmarks/speak_stream.py [--characters 100 500 2000] [--steps 16] [--rounds 3] [--threads 1]

The model is a Qwen3 of 4 layers of 192 with random weights and the codec `mel_rvq` (8 codebooks of 512, 50 Hz): what it
says is noise, but as long as speech of that text would be, and that is what time goes by. Guidance is on. The two take
turns; the seconds of the processor are those of all threads, so that other work on the machine counts little.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from results import write
from speak_generation import BACKBONE

import stentor
from stentor.audio.synth import say
from stentor.inference.model import Model
from stentor.models.base import Family, TaskRequirements
from stentor.models.codecs.base import Codec

SENTENCE = "The old man talked about the last train, and nobody at the station knew a better answer. "
VOICES = ("en-us", "en-us+f3", "en-gb-x-rp+m3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--characters", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        model = build(Path(folder))
        rows = [compare(model, size, args.steps, args.rounds) for size in args.characters]
    write("speak_stream", rows, steps=args.steps, rounds=args.rounds, threads=args.threads)


def build(folder: Path) -> Model:
    torch.manual_seed(0)
    section: dict[str, Any] = {"type": "mel_rvq", "codebooks": 8, "entries": 512, "rounds": 2}
    codec = Codec.model_validate(section).fit([say(8 * SENTENCE, voice).audio for voice in VOICES], seed=0)
    (folder / "codec").mkdir()
    codec.save(folder / "codec")
    model = {"type": "omnivoice", "llm": {"config": BACKBONE}, "text": {"type": "characters"}}
    model["codec"] = {"type": "mel_rvq", "from": str(folder / "codec")}
    family = Family.model_validate(model)
    bundle = family.build(TaskRequirements("speak", ("codes",), texts=lambda: [SENTENCE, SENTENCE.lower()]))
    state = bundle.model.state_dict()
    family.save(bundle, {name: state[name] for name in family.exported_tensor_names(bundle)}, folder / "model")
    config = {"task": {"type": "speak"}, "model": model}
    (folder / "model" / "training_config.json").write_text(json.dumps(config))
    return stentor.load(folder / "model", "cpu")


def compare(model: Model, characters: int, steps: int, rounds: int) -> dict[str, Any]:
    text = (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "stream": lambda: model.speak_stream(text, steps=steps),
        "all": lambda: iter([model.speak(text, steps=steps)]),
    }
    times: dict[str, list[float]] = {}
    pieces: list[float] = []
    for _ in range(rounds):
        for name, way in ways.items():
            clock, processor = time.perf_counter(), time.process_time()
            pieces = [] if name == "stream" else pieces
            for number, piece in enumerate(way()):
                if number == 0:
                    times.setdefault(f"{name}_first_seconds", []).append(time.perf_counter() - clock)
                    times.setdefault(f"{name}_first_cpu_seconds", []).append(time.process_time() - processor)
                if name == "stream":
                    pieces.append(len(piece[0]) / piece[1])
            times.setdefault(f"{name}_cpu_seconds", []).append(time.process_time() - processor)
    row: dict[str, Any] = {"characters": characters, "seconds_of_speech": round(sum(pieces), 1), "pieces": len(pieces)}
    row["first_piece_seconds"] = round(pieces[0], 2)
    row |= {name: round(statistics.median(seconds), 2) for name, seconds in times.items()}
    print(
        f"{characters} characters, {sum(pieces):.0f} s of speech: the first {pieces[0]:.1f} s after "
        f"{row['stream_first_cpu_seconds']:.2f} CPU seconds of {row['stream_cpu_seconds']:.2f}; "
        f"all of it at once {row['all_cpu_seconds']:.2f}"
    )
    return row


if __name__ == "__main__":
    main()
