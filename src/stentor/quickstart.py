"""The embedded default: from nothing to a trained recogniser, offline, on a CPU, in minutes."""

from __future__ import annotations

import json
from pathlib import Path

CONFIG = Path(__file__).with_name("quickstart.yaml")
FRESH = {"text": "four two nine seven one", "voice": "en-gb-scotland+f5", "speed": 160, "pitch": 45}
"""What the trained model transcribes at the end: a sentence and a voice that are in no data set of the run."""


def quickstart(out: Path) -> None:
    """Train the embedded config into `out`, transcribe a fresh sample and say where everything is."""
    from stentor.audio.io import write
    from stentor.audio.synth import say
    from stentor.config.load import load, resolved, stage_configs
    from stentor.inference.load import load as load_model
    from stentor.run import train

    loaded = load(CONFIG, [f"name={out.name}", f"output={out.parent}"])
    train(stage_configs(loaded), out, {"config.yaml": loaded.text, "resolved.yaml": resolved(loaded.config)})
    sample = out / "sample.wav"
    write(sample, say(**FRESH).audio, 16000)
    heard = load_model(out).transcribe(sample)
    (out / "sample.json").write_text(json.dumps(heard, indent=1, ensure_ascii=False), encoding="utf-8")
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    print(f"\nA fresh sample ({sample}): said   {FRESH['text']}\n{' ' * (len(str(sample)) + 18)}heard  {heard['text']}")
    for name, scores in results["eval"].items():
        wer = scores["wer"]
        interval = f"95 %: {wer['low']:.2%} to {wer['high']:.2%}"
        print(f"{name}: WER {wer['value']:.2%} ({wer['errors']} errors in {wer['total']} words; {interval})")
    print(f"Trained for {results['seconds']:.0f} s. Report: {out / 'report.html'}   Model: {out / 'export'}")
    print(f"Next: stentor transcribe {out} YOUR.wav")
