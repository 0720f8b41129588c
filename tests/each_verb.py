"""Imports every module, trains two steps and runs one of each verb: `python tests/each_verb.py FOLDER [EXTRA...]`.

Extras that are named are hidden, as if they were not installed. Exit code 0: each verb did its work, or it named the
extra that it needs in one sentence with exit code 2. Needs the base installation alone; FOLDER is made.
"""

import contextlib
import importlib
import io
import json
import os
import pkgutil
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

RECOGNISER = """\
task: {type: words, normalizer: none}
model:
  type: speech_llm
  encoder:
    config: {model_type: whisper, num_mel_bins: 40, d_model: 32, encoder_layers: 1, encoder_attention_heads: 2,
             encoder_ffn_dim: 64, max_source_positions: 1500}
  projector: {type: mlp, rate: 12.5}
  llm:
    config: {model_type: qwen2, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, tie_word_embeddings: true, max_position_embeddings: 512}
  tokenizer: {type: characters}
  ctc: {units: characters}
  aligner: {}
  prompt: {instruction: null, language: false, context: false}
data:
  train: [{type: jsonl, path: clips.jsonl}]
  eval: {dev: {type: jsonl, path: clips.jsonl}}
  batch_tokens: 400
  max_items: 4
  workers: 0
losses: {text: {type: cross_entropy}, ctc: {type: ctc, weight: 0.5}, alignment: alignment}
train: {steps: 2, log_every: 1, device: cpu}
output: runs
"""
DIARIZER = """\
task: {type: diarize, labels: powerset, chunk: 4}
model: {type: transformer, shared: {d_model: 16, layers: 1}, features: {stack: 10, subsample: 10}}
data:
  train: [{type: jsonl, path: clips.jsonl}]
  eval: {dev: {type: jsonl, path: clips.jsonl}}
  batch_tokens: 400
  workers: 0
train: {steps: 2, log_every: 1, device: cpu}
output: runs
"""
VOICE = """\
task: {type: speak, generation: {steps: 2}}
model:
  type: omnivoice
  llm:
    config: {model_type: qwen3, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 1, head_dim: 16}
  text: {type: characters}
  codec: {type: mel_rvq, from: codec}
data:
  train: [{type: jsonl, path: clips.jsonl}]
  batch_tokens: 400
  workers: 0
train: {steps: 2, log_every: 1, device: cpu}
output: runs
"""
ROUNDS = """\
base: run.yaml
task: {type: transcribe}
model: {aligner: null}
losses: {alignment: null}
data:
  eval: {dev: null}
  test: {test: {type: jsonl, path: test.jsonl}}
improve:
  rounds: 0
  unlabelled: [{type: jsonl, path: others.jsonl}]
  labels: {stages: [], filters: [], max_error: 1.0, assurance: 0.5, device: cpu}
  speech: null
  mix: {human: 1, pseudo: 1}
  may_share: [texts]
"""
MIXTURES = "{type: conversation, source: {type: jsonl, path: turns.jsonl}, speakers: 2, seconds: 4, count: 2}\n"
SYNTH = "base: run.yaml\ndata: {train: [{type: synth, texts: digits, count: 4}]}\n"
CALLS = [
    ("doctor", ""),
    ("models", ""),
    ("models show openai/whisper-tiny", ""),
    ("config check run.yaml", ""),
    ("config show run.yaml", ""),
    ("config keys train.steps", ""),
    ("config schema", ""),
    ("config reference --to reference.md", ""),
    ("config convert voxlm voxlm.yaml", ""),
    ("config convert universal universal.yaml", ""),
    ("config convert omnivoice omnivoice.json", ""),
    ("config convert voxtral voxtral.sh", ""),
    ("prepare corpus librispeech --from . --to corpus --split dev-clean", ""),
    ("prepare index clips.jsonl", ""),
    ("prepare check clips.jsonl --to checked", ""),
    ("prepare segments clips.jsonl --to segments --stage vad", ""),
    ("prepare features clips.jsonl --to features", ""),
    ("prepare codec clips.jsonl --to codec --codec mel_rvq --option codebooks=2 --option entries=8", ""),
    ("prepare tokens clips.jsonl --codec codec --to tokens", ""),
    ("prepare mixtures --config mixtures.yaml --to mixtures", ""),
    ("train run.yaml name=words", ""),
    ("train who.yaml name=who", ""),
    ("train speak.yaml name=voice", ""),
    ("train synth.yaml name=synth", "voice"),
    ("improve rounds.yaml name=rounds", ""),
    ("prepare run run.yaml", ""),
    ("prepare words clips.jsonl --to words.jsonl --model runs/words", ""),
    ("prepare labels clips.jsonl --to labels --model runs/words --max-error 1 --assurance 0.5", ""),
    ("prepare speech texts.jsonl --to speech --model runs/voice --instruct male", ""),
    ("prepare speech texts.jsonl --to built-in", "voice"),
    ("prepare words built-in/manifest.jsonl --to times.jsonl --engine voice", "voice"),
    ("evaluate runs/words --data clips.jsonl", ""),
    ("evaluate runs/who --data clips.jsonl", ""),
    ("transcribe runs/words 0.wav --words", ""),
    ("transcribe runs/words 0.wav --vad silero", "vad"),
    ("diarize runs/who 0.wav", ""),
    ("align runs/words 0.wav 'one two'", ""),
    ("speak runs/voice 'one two' --out spoken.wav", ""),
    ("speak runs/voice '1 2' --out numbers.wav --normalize", "speak"),
    ("voices runs/voice", ""),
    ("export runs/words --to copy", ""),
    ("export runs/words --to graphs --format onnx", "onnx"),
    ("publish model runs/words --to someone/words --license apache-2.0 --dry-run published", ""),
    ("publish dataset clips.jsonl --to someone/clips --license cc0-1.0 --dry-run clips", ""),
]
"""Command lines, and the extra that each needs."""
REFUSED = [
    ("evaluate --board fleurs --fetch", "judges"),
    ("transcribe runs/words gs://bucket/0.wav", "gs"),
    ("transcribe runs/words s3://bucket/0.wav", "s3"),
    ("prepare check https://localhost:1/clips.jsonl --to never", "web"),
    ("publish demo runs/words --to someone/demo --dry-run demo", "studio"),
    ("quickstart --out quick", "voice"),
    ("serve runs/words", "serve"),
    ("studio --folder studio", "studio"),
    ("demo runs/words", "studio"),
]
"""Command lines that are run where their extra is missing alone."""
ELSEWHERE = {("import", "voxlm"): "tests/models/test_voxlm_import.py, which makes a checkpoint of VoxLM"}
"""Verbs that are not run here, and where they are."""


def import_all() -> int:
    """Import each module of the package that needs no missing extra; their number."""
    import stentor

    count = 0
    for module in pkgutil.walk_packages(stentor.__path__, "stentor.", onerror=lambda name: None):
        if ".templates" in module.name or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
            count += 1
        except ModuleNotFoundError as error:
            if not module.name.startswith(("stentor.serve", "stentor.studio", "stentor.web")):
                raise
            assert not str(error.name).startswith("stentor"), error
    return count


def write_files() -> None:
    """Clips of noise with two words and two speakers each, and the run files."""
    import soundfile

    rng = np.random.default_rng(0)
    records = []
    for i in range(10):
        audio = rng.standard_normal(16000 * 3).astype(np.float32) * 0.1 * np.repeat([1, 0.01, 1], 16000)
        soundfile.write(f"{i}.wav", audio, 16000)
        words = [{"word": word, "start": 2.0 * k, "end": 2.0 * k + 1} for k, word in enumerate(("one", "two"))]
        segments = [{"speaker": f"s{i}-{k}", "start": 2.0 * k, "end": 2.0 * k + 1} for k in range(2)]
        record = {"id": f"clip{i}", "audio_path": f"{i}.wav", "duration": 3.0, "text": "one two", "language": "en"}
        records.append(record | {"words": words, "segments": segments})
    lines = [json.dumps(record) + "\n" for record in records]
    turns = [{k: v for k, v in r.items() if k != "segments"} | {"speaker": r["id"]} for r in records]
    chapter = Path("LibriSpeech", "dev-clean", "1", "2")
    chapter.mkdir(parents=True)
    soundfile.write(chapter / "1-2-0000.flac", np.zeros(16000), 16000)
    (chapter / "1-2.trans.txt").write_text("1-2-0000 ONE TWO\n", encoding="utf-8")
    contents = {
        "clips.jsonl": "".join(lines[:6]),
        "others.jsonl": "".join(lines[6:8]),
        "test.jsonl": "".join(lines[8:]),
        "turns.jsonl": "".join(json.dumps(turn) + "\n" for turn in turns),
        "texts.jsonl": "".join(json.dumps({"id": str(i), "text": "one two"}) + "\n" for i in range(2)),
        "run.yaml": RECOGNISER,
        "who.yaml": DIARIZER,
        "speak.yaml": VOICE,
        "rounds.yaml": ROUNDS,
        "synth.yaml": SYNTH,
        "mixtures.yaml": MIXTURES,
        "voxlm.yaml": "training: {phase1: {learning_rate: 0.001}}\n",
        "universal.yaml": "training: {optimizer: {lr: 0.001}}\n",
        "omnivoice.json": "{}",
        "voxtral.sh": "python train.py --train-batch-size 2\n",
    }
    for name, content in contents.items():
        Path(name).write_text(content, encoding="utf-8")


def words(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


def verb_names() -> set[tuple[str, ...]]:
    from stentor.inference.declarations import VERBS

    return {tuple(f"{verb.group} {verb.name}".split()) for verb in VERBS}


def check(line: str, extra: str) -> bool:
    """Run a command; whether it ended well, or with one sentence that names the extra."""
    from stentor.cli import main as stentor

    started, said = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = stentor(shlex.split(line))
    lines = said.getvalue().strip().splitlines()
    if extra:
        right = code == 2 and len(lines) == 1 and f"pip install 'stentor[{extra}]'" in lines[0]
    else:
        right = code == 0
    print(f"{'ok' if right else 'FAILED'} {code} {time.monotonic() - started:.1f} s  stentor {line}", flush=True)
    if extra or not right:
        print("\n".join(f"    {line}" for line in lines[-30:]))
    return right


def main(folder: Path, hidden: Sequence[str] = ()) -> None:
    from stentor.errors import EXTRAS, installed

    for module in {module for extra in hidden for module in EXTRAS[extra][1]}:
        sys.modules[module] = None  # type: ignore[assignment]
    missing = {extra for extra, (_, modules) in EXTRAS.items() if not all(map(installed, modules))}
    print(f"extras that are not installed: {' '.join(sorted(missing)) or 'none'}")
    print(f"modules imported: {import_all()}")
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_files()
    calls = [*CALLS, *(call for call in REFUSED if call[1] in missing)]
    failed = [line for line, extra in calls if not check(line, extra if extra in missing else "")]
    named = {words(line) for line, _ in (*CALLS, *REFUSED)}
    untried = verb_names() - ELSEWHERE.keys() - {n[:k] for n in named for k in range(1, 4)}
    failed += [f"no call of {name}" for name in sorted(untried)]
    sys.exit("\n".join(["failed:", *failed]) if failed else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
