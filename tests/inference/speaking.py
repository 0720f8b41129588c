"""An untrained model that speaks, in a few hundred kilobytes, for the tests of `stentor speak`."""

import json
from pathlib import Path

import numpy as np

RATE = 16000
TEXTS = ["one two three four five six seven eight nine zero", "the quick brown fox jumps over a lazy dog, ok. yes!"]


def voiced(seconds: float, pitch: float = 150.0, seed: int = 0) -> np.ndarray:
    """A buzz with syllables: float32 [samples] at 16 kHz, loud all along but for its short gaps."""
    time = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).standard_normal(len(time))
    buzz = sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 12))
    return (0.1 * (buzz + 0.1 * noise) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))).astype(np.float32)


def make_codec(seed: int = 0, **changes):
    """A mel_rvq codec with 3 codebooks of 16 entries at 50 Hz."""
    import torch

    from stentor.models.codecs.base import Codec

    torch.manual_seed(seed)
    settings = {"type": "mel_rvq", "codebooks": 3, "entries": 16, "rounds": 3, "iterations": 2, **changes}
    return Codec.model_validate(settings).fit([voiced(2, p, seed + p) for p in (110, 150, 230)], seed=seed)


def make_model(folder: Path, published: bool = False, texts: list[str] = TEXTS) -> Path:
    """The export folder of a model; `published`: without the files of a training run."""
    import torch

    from stentor.models.base import Family, TaskRequirements

    torch.manual_seed(3)
    codec = folder.with_name(f"{folder.name}-codec")
    codec.mkdir(parents=True)
    make_codec().save(codec)
    llm = {
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "initializer_range": 0.4,
    }
    section = {
        "type": "omnivoice",
        "llm": {"config": llm},
        "text": {"type": "characters"},
        "codec": {"type": "mel_rvq", "from": str(codec)},
    }
    family = Family.model_validate(section)
    bundle = family.build(TaskRequirements("speak", ("codes",), texts=lambda: texts))
    state = bundle.model.state_dict()
    family.save(bundle, {name: state[name] for name in family.exported_tensor_names(bundle)}, folder)
    if published:
        (folder / "stentor.json").unlink()
    else:
        task = {"type": "speak", "generation": {"steps": 3}}
        (folder / "training_config.json").write_text(json.dumps({"task": task, "model": section}))
    return folder
