"""The data sets and models that the files in wrong_runs/ speak of, made small and offline."""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import soundfile

CASES = Path(__file__).parent / "wrong_runs"
LATIN = {
    "model_type": "wav2vec2",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_conv_pos_embedding_groups": 2,
    "intermediate_size": 32,
    "conv_dim": [16, 16, 16, 16, 16, 16, 16],
    "num_conv_pos_embeddings": 16,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
}


def answer(*arguments: str) -> tuple[int, str]:
    """Exit code, and what stands on stderr, of a command in the current folder."""
    from stentor.cli import main

    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        code = main([*arguments])
    return code, stderr.getvalue()


def speaks_plainly(text: str) -> bool:
    """Whether the exit code and the message of a command are those of a mistake, in words for people."""
    code, first, *_ = text.splitlines()
    jargon = ("Traceback", "Error:", "NoneType", "unexpected failure", "/tmp", "/proc")
    return code in ("exit 2", "exit 3") and first.startswith("stentor: ") and not any(word in text for word in jargon)


def build(folder: Path) -> None:
    """Everything, and the cases beside it."""
    import datasets

    shutil.copytree(CASES, folder, dirs_exist_ok=True)
    sound = io.BytesIO()
    noise = np.random.default_rng(0).standard_normal(8000).astype(np.float32) * 0.1
    soundfile.write(sound, noise, 16000, format="FLAC")
    clips(folder / "clips", noise)
    rows = [{"audio": {"bytes": sound.getvalue(), "path": None}, "speaker_id": f"p{i % 2}"} for i in range(4)]

    def write(name: str, texts: list, column: str = "sentence") -> None:
        dataset = datasets.Dataset.from_list([{**row, column: text} for row, text in zip(rows, texts)])
        (folder / name).mkdir()
        dataset.cast_column("audio", datasets.Audio()).to_parquet(folder / name / "train.parquet")

    texts = ["one", "two", "three", "four"]
    write("speech", texts)
    write("says", texts, "says")
    write("numbers", [1, 2, 3, 4])
    rows[1]["audio"], rows[3]["audio"] = {"bytes": b"not audio at all", "path": None}, None
    write("broken", texts)
    models(folder)


def clips(folder: Path, noise: np.ndarray) -> None:
    """Manifests of four clips."""
    folder.mkdir()
    for i in range(4):
        soundfile.write(folder / f"{i}.wav", noise, 16000)
    manifests = {
        "train": [{"text": f"{w} two"} for w in ("one", "two", "three", "four")],
        "numbers": [{"text": "one"}, {"text": 2}, {"text": 3.5}, {"text": "four"}],
        "greek": [{"text": "one"}, {"text": "\u03ad\u03bd\u03b1"}, {"text": "\u03b4\u03cd\u03bf"}, {"text": "four"}],
        "klingon": [
            {"text": "one", "language": "en"},
            {"text": "wa'", "language": "tlh"},
            {"text": "two"},
            {"text": "three", "language": "en"},
        ],
    }
    for name, records in manifests.items():
        lines = [json.dumps({"audio_path": f"{i}.wav", "duration": 0.5, **r}) for i, r in enumerate(records)]
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def models(folder: Path) -> None:
    """A CTC model of small Latin letters, what can be wrong with such a folder, and a tokenizer for Voxtral."""
    import torch

    from stentor.models.base import Family, TaskRequirements

    sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
    from tiny_voxtral import write_tokenizer

    write_tokenizer(folder / "tekken")
    torch.manual_seed(0)
    alphabet = TaskRequirements("transcribe", ("ctc",), texts=lambda: ["abcdefghijklmnopqrstuvwxyz"])
    bundle = Family.model_validate({"type": "ctc", "config": LATIN}).build(alphabet)
    latin = folder / "latin"
    bundle.family.save(bundle, bundle.model.state_dict(), latin)
    for name in ("pickled", "damaged", "unheard_of", "speaker_model"):
        shutil.copytree(latin, folder / name)
    torch.save({}, folder / "pickled" / "pytorch_model.bin")
    (folder / "pickled" / "model.safetensors").unlink()
    (folder / "damaged" / "model.safetensors").write_bytes(b"\x00" * 100)
    for name, kind in (("unheard_of", "hear_everything"), ("speaker_model", "bert")):
        file = folder / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": kind}))
