"""GGUF files for CrispASR, whose backends read models of several kinds from one file (`kinds.KINDS`)."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.exporter import Converter
from stentor.export.gguf.kinds import KINDS, Kind
from stentor.export.gguf.names import gguf_name
from stentor.export.onnx.ctc import outputs_with_times
from stentor.tasks.transcribe import Transcribe

if TYPE_CHECKING:
    from stentor.inference.model import Model
    from stentor.models.base import Bundle

FILE = "model.gguf"
PREFIX = re.compile(r"^(?:model|wav2vec2|hubert|data2vec_audio|unispeech|unispeech_sat)\.")
"""Prefix that transformers writes before the names of a model's parts."""
GLIBC = (2, 35)
"""Oldest C library that CrispASR's wheel for Linux loads with."""
USAGE = """\
[CrispASR](https://github.com/CrispStrobe/CrispASR) runs `model.gguf`, on the command line and from Python:

```python
import crispasr, soundfile  # pip install crispasr soundfile

audio, rate = soundfile.read("speech.wav", dtype="float32")
with crispasr.Session("{folder}/model.gguf") as session:
    for segment in session.transcribe(audio, rate):
        print(segment.text, [(word.text, word.start, word.end) for word in segment.words])
```

The keys and names of tensors are those of CrispASR 0.8.45.
"""
PROGRAM = """\
import json, sys
import crispasr, numpy
clips = numpy.load(sys.argv[2])
limits = json.loads(sys.argv[5])
with crispasr.Session(sys.argv[1], n_threads=int(sys.argv[3])) as session:
    for name, limit in zip(clips.files, limits):
        if limit:
            session.set_max_new_tokens(limit)
        segments = session.transcribe(clips[name], language=sys.argv[4] or None)
        words = [[w.text, w.start, w.end] for s in segments for w in s.words]
        print("ANSWER", json.dumps([" ".join(s.text for s in segments), words]))
"""
"""Run by another Python, because the library ends its process on files that it cannot read. Its arguments: file, clips,
threads, language, tokens that an answer may have (0: as many as it likes)."""


class CrispASRExporter(Converter):
    """One file `model.gguf` with weights, settings and tokens."""

    runtime = "crispasr"
    extra = "gguf"
    quantizations = {"f16": 0.2, "q8_0": 1.0, "q5_0": 2.0, "q4_0": 2.0}
    usage = USAGE

    def refusal(self, bundle: Bundle) -> str | None:
        library, version = platform.libc_ver()
        if library == "glibc" and tuple(map(int, version.split(".")[:2])) < GLIBC:
            return f"CrispASR cannot be loaded here: it needs glibc {GLIBC[0]}.{GLIBC[1]} or newer, not {version}"
        config = config_of(bundle)
        if config is None:
            return "CrispASR reads models of transformers, and this is Stentor's own"
        if config.model_type not in KINDS:
            return f"of models for CrispASR, {', '.join(KINDS)} can be written, not {config.model_type}"
        return KINDS[config.model_type].refusal(bundle, config)

    def convert(self, model: Model, folder: Path, quantization: str | None) -> None:
        from stentor.models.pretrained.weights import read_weights

        bundle = model.bundle
        config = config_of(bundle)
        kind = KINDS[config.model_type]
        if isinstance(model.task, Transcribe) and model.task.translate:
            raise ConfigError("--format gguf: CrispASR asks models to transcribe, and this one translates.")
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            bundle.family.save_merged(bundle, Path(scratch))
            weights = read_weights(Path(scratch))[0]
        named = dict(renamed(weights, kind))
        if kind.extra is not None:
            named |= kind.extra(bundle, config, named)
        write_gguf(folder / FILE, kind, kind.keys(bundle, config), named, quantization)

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        kind = KINDS[config_of(model.bundle).model_type]
        languages = [e.language or "" if kind.language else "" for e in examples]
        outputs: dict[int, dict[str, Any]] = {}
        processor: Any = model.bundle.processor
        spoken = model.bundle.family.type == "audio_llm"
        for language in sorted(set(languages)):
            chosen = [i for i, name in enumerate(languages) if name == language]
            seconds = [len(examples[i].audio) / processor.sample_rate for i in chosen]  # type: ignore[arg-type]
            limits = [processor.max_new_tokens(s) if spoken else 0 for s in seconds]
            answers = run_session(folder / FILE, [examples[i].audio for i in chosen], language, limits)
            outputs |= dict(zip(chosen, answers, strict=True))
        return [outputs[i] for i in range(len(examples))]

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]] | None:
        return outputs_with_times(model, examples, room=False) if model.bundle.family.type == "ctc" else None


def config_of(bundle: Bundle) -> Any:
    """transformers' config of the model; None for one that is not transformers'."""
    model: Any = bundle.model
    inner = model._modules.get("recogniser")
    return vars(model).get("config") if inner is None else inner.config


def renamed(weights: Mapping[str, Any], kind: Kind) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors under their names in the file, float32, weight norms folded. Raises ConfigError for one without a
    place."""
    import torch

    for name, tensor in weights.items():
        array = tensor.float()
        if name.endswith(".original0"):
            continue
        if name.endswith(".parametrizations.weight.original1"):
            array = torch._weight_norm(array, weights[f"{name[:-1]}0"].float(), 2)
            name = name.replace(".parametrizations.weight.original1", ".weight")
        try:
            place = gguf_name(PREFIX.sub("", name), kind.names)
        except KeyError:
            raise ConfigError(f"--format gguf: CrispASR's {kind.architecture} has no tensor like {name}.") from None
        if place is not None:
            yield place, array.numpy()


def write_gguf(
    path: Path, kind: Kind, keys: Mapping[str, Any], tensors: Mapping[str, np.ndarray], quantization: str | None
) -> None:
    """Write the file, matrices in `quantization` where their rows are a multiple of its block, else in float16."""
    import gguf

    writer = gguf.GGUFWriter(path, kind.architecture)
    kinds = gguf.GGUFValueType
    types = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING, list: kinds.ARRAY}
    for key, value in keys.items():
        if value != []:
            writer.add_key_value(key, value, types[type(value)])
    wanted = None if quantization is None else gguf.GGMLQuantizationType[quantization.upper()]
    for name, array in tensors.items():
        exact = array.ndim < 2 or name.startswith(kind.exact) or "norm" in name or "bias" in name
        if wanted is None or exact:
            writer.add_tensor(name, array.astype(np.float32, copy=False))
            continue
        block = gguf.GGML_QUANT_SIZES[wanted][0]
        whole = array.ndim == 2 and array.shape[1] % block == 0
        into = wanted if whole else gguf.GGMLQuantizationType.F16
        writer.add_tensor(name, gguf.quantize(array, into), raw_dtype=into)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_session(
    file: Path, clips: Sequence[Any], language: str = "", limits: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Outputs of CrispASR for clips at 16 kHz, of at most `limits` tokens. Raises ConfigError with its last words when
    it cannot."""
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "clips.npz"
        np.savez(path, *(np.asarray(clip, np.float32) for clip in clips))
        arguments = [str(file), str(path), str(torch.get_num_threads()), language]
        arguments.append(json.dumps(list(limits) or [0] * len(clips)))
        done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    if done.returncode or len(lines) != len(clips):
        said = done.stderr.strip().splitlines() or ["no message"]
        last = next((line for line in said if "ASSERT" in line), said[-1])  # else what a debugger adds to it
        raise ConfigError(f"CrispASR cannot run {file.name} here (exit {done.returncode}): {last}")
    outputs = []
    for line in lines:
        text, words = json.loads(line.removeprefix("ANSWER "))
        output: dict[str, Any] = {"text": text.strip()}
        if words and all(start is not None for _, start, _ in words):
            output["words"] = [{"word": word, "start": start, "end": end} for word, start, end in words]
        outputs.append(output)
    return outputs
