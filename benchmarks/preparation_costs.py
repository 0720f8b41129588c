"""Costs of preparation: CPU seconds, and bytes read and written, of each step, for 1,000 hours of audio.

    python benchmarks/preparation_costs.py [--minutes 30] [--data DATA] [--model RUN]

Each verb runs as its users run it, with one process of one thread, on FLAC files of `--data` (the
built-in voice). CPU seconds are
those of the process and its children; start-up (the same verb on a single record) is taken off, since it does not grow
with the data. Bytes are the sizes of the files that a step reads and of those that it leaves. `--model` names a run or
export for the steps that need a recogniser; without it they are left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import results

from stentor.audio.io import write
from stentor.config.load import parse_source
from stentor.data.cut import RATE, record_from_cut
from stentor.data.load_audio import load_audio

STEPS = {
    "check": ["prepare", "check", "{data}", "--jobs", "1", "--to", "{to}"],
    "index": ["prepare", "index", "{data}"],
    "tokens, raw FLAC": ["prepare", "tokens", "{data}", "--codec", "none", "--to", "{to}", "--min-shards", "1"],
    "tokens, mel_rvq": ["prepare", "tokens", "{data}", "--codec", "{codec}", "--to", "{to}", "--min-shards", "1"],
    "features": ["prepare", "features", "{data}", "--to", "{to}"],
    "words": ["prepare", "words", "{data}", "--model", "{model}", "--device", "cpu", "--to", "{to}/words.jsonl"],
    "transcribe": ["transcribe", "{model}", "{data}", "--format", "json", "--out", "{to}"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--data", default="type=synth,texts=sentences,count=2000", help="where the audio comes from")
    parser.add_argument("--model", help="run or export of a recogniser")
    parser.add_argument("--only", nargs="*", default=list(STEPS), help="names of steps")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest, hours = make(folder / "data", args.data, args.minutes * 60)
        one = folder / "data" / "one.jsonl"
        one.write_text(manifest.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
        values = {"model": args.model or "", "codec": str(folder / "codec")}
        run(["prepare", "codec", str(manifest), "--to", values["codec"], "--device", "cpu"])
        print(f"{hours:.2f} h of audio, {size(folder / 'data') / 1e6:.1f} MB of FLAC; for 1,000 h:\n")
        print(f"{'step':20} {'CPU hours':>10} {'GB read':>9} {'GB written':>11}")
        rows = []
        for step, words in STEPS.items():
            if step not in args.only or ("{model}" in " ".join(words) and not args.model):
                continue
            rows.append(cost(step, words, manifest, one, hours, values))
    results.write("preparation_costs", rows, hours=hours, data=args.data, model=args.model)


def cost(step: str, words: list[str], manifest: Path, one: Path, hours: float, values: dict[str, str]) -> dict:
    """Runs a step on all records and on one; prints and answers its cost for 1,000 hours."""
    seconds = []
    for data in (one, manifest):
        to = manifest.parent.parent / f"{step.replace(', ', '-').replace(' ', '-')}-{data.stem}"
        before = size(manifest.parent)
        inputs = audio(manifest) if step == "transcribe" and data == manifest else [str(data)]
        if step == "transcribe" and data == one:
            inputs = audio(manifest)[:1]
        command = [v for w in words for v in (inputs if w == "{data}" else [w.format(to=to, **values)])]
        seconds.append(run(command, (0, 3) if data == one else (0,)))  # a single record may be refused
        written = size(to) + size(manifest.parent) - before
    read = 0 if step == "index" else before
    scale = 1000 / hours
    row = {
        "step": step,
        "cpu_hours": (seconds[1] - seconds[0]) * scale / 3600,
        "startup_seconds": seconds[0],
        "gb_read": (read + manifest.stat().st_size) * scale / 1e9,
        "gb_written": written * scale / 1e9,
    }
    print(f"{step:20} {row['cpu_hours']:10.2f} {row['gb_read']:9.2f} {row['gb_written']:11.3f}", flush=True)
    return row


def make(folder: Path, data: str, seconds: float) -> tuple[Path, float]:
    """FLAC files at 16 kHz with their manifest, and hours of audio."""
    folder.mkdir()
    lines, total = [], 0.0
    for number, cut in enumerate(parse_source(data).cuts()):
        write(folder / f"{number:06d}.flac", load_audio(cut, RATE), RATE)
        record = record_from_cut(cut)
        keep = {key: record[key] for key in ("id", "text", "duration", "speaker", "language") if record.get(key)}
        lines.append(json.dumps({"audio_path": f"{number:06d}.flac", **keep}))
        total += cut.duration
        if total >= seconds:
            break
    manifest = folder / "data.jsonl"
    manifest.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return manifest, total / 3600


def audio(manifest: Path) -> list[str]:
    return [str(p) for p in sorted(manifest.parent.glob("*.flac"))]


def size(path: Path) -> int:
    """Bytes of the files of a folder."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else 0


def run(words: list[str], allowed: tuple[int, ...] = (0,)) -> float:
    """CPU seconds of a command of Stentor, its children included."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "stentor", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode not in allowed:
        raise SystemExit(f"stentor {' '.join(words[:4])} ...: exit code {done.returncode}\n{done.stdout.decode()}")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main()
