"""A tiny OmniVoice model and items for it: codec tokens at random, conditions as the task draws them."""

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.data.conditions import Spoken, draw
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.tasks.speak.task import Speak

BOOKS, ENTRIES = 4, 12
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLMS = {
    "qwen3": {"model_type": "qwen3", "head_dim": 8, **SIZES},
    "llama": {"model_type": "llama", **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES},
    "gemma": {"model_type": "gemma", "head_dim": 8, **SIZES},
}
TEXTS = ("one two three", "four", "five six", "seven eight nine zero")


def build(llm: str | dict = "qwen3", terms=("codes",), texts=TEXTS, **keys) -> Bundle:
    """A bundle with weights as large as trained ones, so that differences show."""
    section = {
        "type": "omnivoice",
        "llm": llm if "from" in llm else {"config": LLMS[llm] if isinstance(llm, str) else llm},
        "text": {"type": "characters"},
        "codebooks": BOOKS,
        "entries": ENTRIES,
        **keys,
    }
    torch.manual_seed(0)
    bundle = Family.model_validate({k: v for k, v in section.items() if v is not None}).build(
        TaskRequirements("speak", tuple(terms), lambda: iter(texts))
    )
    if "from" not in keys:
        enlarge(bundle.model)
    return bundle


def enlarge(model: torch.nn.Module) -> None:
    """Weights as large as trained ones: of a new model the attention would be nearly even everywhere."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.normal_(std=0.3, generator=generator)


def codes_of(seed: int, frames: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, ENTRIES, (BOOKS, frames)).astype(np.int16)


def examples(frames=(17, 5, 30, 11), task: Speak | None = None, seed: int = 0, **record) -> list[Example]:
    """Items with codes, each with randomness of its own."""
    task = task or Speak(type="speak", language_ratio=0.5)
    items = []
    for i, length in enumerate(frames):
        rng = np.random.default_rng([seed, i])
        spoken = Spoken(**{"text": TEXTS[i % len(TEXTS)], "language": ["en", None][i % 2], **record})
        extra = {"conditions": draw(spoken, task, rng), "codes": codes_of(100 + i, length), "instruct": None}
        items.append(Example(id=f"item{i}", text=spoken.text, language=spoken.language, rng=rng, extra=extra))
    return items


def sums(bundle: Bundle, items: list[Example], packed: bool = False) -> dict[str, torch.Tensor]:
    """Summed cross entropy of each codebook."""
    from stentor.losses.token import CrossEntropy

    outputs = bundle.model(**bundle.processor.collate(items, packed=packed).inputs)
    return {term: CrossEntropy().sum(**output) for term, output in outputs.items()}
