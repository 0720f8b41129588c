"""The embedded default: from nothing to a trained recogniser, offline, on a CPU, in minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.storage import is_remote, name_of
from stentor.errors import ConfigError

if TYPE_CHECKING:
    from stentor.commands.begin_options import QuickstartOptions

CONFIGS = {
    "transducer": Path(__file__).with_name("quickstart.yaml"),
    "speech_llm": Path(__file__).with_name("quickstart_speech_llm.yaml"),
}
"""The embedded config of each model that `--model` knows; the first is the default."""
FRESH: dict[str, Any] = {"text": "four two nine seven one", "voice": "en-us-nyc+steph", "speed": 160, "pitch": 45}
"""Sentence that the trained model transcribes at the end: one that is in no data set of the run, by a voice that is in
no training data."""


PROCESSES = 2
"""The config's batches are for two processes of one thread: on small tensors they do more than one with two threads."""


def quickstart(options: QuickstartOptions) -> int:
    """Train the embedded config of a model, transcribe a fresh sample and say where everything is; the exit code.
    Raises ConfigError for a model that there is no config of."""
    from stentor.data.system import usable_cores
    from stentor.engine.launch import launch, launched

    out, model = options.out, options.model
    if model not in CONFIGS:
        raise ConfigError(f"Unknown --model {model}; known: {', '.join(CONFIGS)}.")
    if is_remote(out):
        raise ConfigError(f"--out {name_of(out)}: the quickstart writes to a folder on this machine.")
    if launched(PROCESSES):
        _train(options, accumulate=1)
        return 0
    if usable_cores() >= PROCESSES and not _gpu():
        if code := launch(PROCESSES, ["quickstart", *options.overrides, "--out", str(out), "--model", model]):
            return code
    else:
        _train(options, accumulate=PROCESSES)
    _show(out)
    return 0


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _train(options: QuickstartOptions, accumulate: int) -> None:
    from stentor.commands.train import train
    from stentor.config.load import load, run_texts, stage_configs

    out = options.out
    own = [f"name={out.name}", f"output={out.parent}", f"train.accumulate={accumulate}"]
    loaded = load(CONFIGS[options.model], [*own, *options.overrides])
    train(stage_configs(loaded), out, run_texts(loaded))


def _show(out: Path) -> None:
    from stentor.audio.io import write
    from stentor.audio.synth import say
    from stentor.inference.load import load as load_model
    from stentor.metrics.format import figure, interval

    sample = out / "sample.wav"
    write(sample, say(**FRESH).audio, 16000)
    transcript = load_model(out).transcribe(sample)
    (out / "sample.json").write_text(json.dumps(transcript, indent=1, ensure_ascii=False), encoding="utf-8")
    print(
        f"\nA fresh sample ({sample}): said   {FRESH['text']}\n"
        f"{' ' * (len(str(sample)) + 18)}heard  {transcript['text']}"
    )
    print("its words: " + "  ".join(f"{w['word']} {w['start']:.2f}-{w['end']:.2f} s" for w in transcript["words"]))
    stages = sorted((out / "stages").glob("*/results.json"))
    *before, results = (json.loads(p.read_text(encoding="utf-8")) for p in [*stages, out / "results.json"])
    for name, scores in results["eval"].items():
        wer, mean, median = (scores[m] for m in ("wer", "word_time_mean_ms", "word_time_median_ms"))
        print(
            f"{name}: WER {figure('wer', wer['value'])} ({wer['errors']} errors in {wer['total']} words; "
            f"95 %: {interval('wer', wer)}); word times off by {figure('mean_ms', mean['value'])} in the mean, "
            f"{figure('median_ms', median['value'])} in the median"
        )
    seconds = [r["seconds"] for r in (*before, results)]
    print(f"Trained for {' + '.join(f'{s:.0f}' for s in seconds)} s.")
    print(f"Report: {out / 'report.html'}   Model: {out / 'export'}")
    print(f"Next: stentor transcribe {out} --words --format json YOUR.wav")
