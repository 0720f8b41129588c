"""Learning rate and epochs to start from, by what is trained and the hours of data.

No figure here is an optimum: each is what those who published a recipe for such a model took, with its origin, and the
number of epochs falls with the hours so that little data is not repeated without end. Early stopping on the error rate
of held-out speakers decides in the end.
"""

from dataclasses import dataclass
from typing import Any

FAR = 5.0
"""A config whose value is this many times higher or lower than the suggestion gets a note."""

WHISPER = [(60e6, 3.75e-5), (150e6, 2.5e-5), (400e6, 1.25e-5), (1e9, 6.25e-6), (float("inf"), 4.4e-6)]
"""Peak learning rates for sizes of Whisper up to so many parameters: 1/40 of those it was pretrained with. The other
models of its family have no published recipes and take them too."""

RATES: dict[tuple[str, str], tuple[float, str]] = {
    ("seq2seq", "lora"): (
        2e-4,
        "QLoRA (Dettmers et al. 2023) for models below 33 B; PEFT's example for Whisper takes 1e-3",
    ),
    ("voxtral", "full"): (
        5e-5,
        "the public fine-tuning script for Voxtral Mini (Deep-unlearning/Finetune-Voxtral-ASR)",
    ),
    ("voxtral", "lora"): (
        1e-4,
        "between the 5e-5 of the public LoRA script for Voxtral Mini and the 2e-4 of QLoRA (Dettmers et al. 2023)",
    ),
    ("qwen3_asr", "full"): (2e-5, "the makers' fine-tuning script (QwenLM/Qwen3-ASR)"),
    ("qwen3_asr", "lora"): (2e-4, "ten times the makers' rate for full fine-tuning (LoRA Without Regret, 2025)"),
    ("ctc", "full"): (5e-5, "fairseq's configs for wav2vec 2.0 on 1 and 10 h"),
    ("ctc", "new head"): (3e-4, "transformers' example for a new alphabet on XLSR (Common Voice Turkish)"),
    ("ctc", "lora"): (3e-4, "as the head of transformers' CTC example, which trains beside the adapters"),
    ("ctc", "language adapter"): (1e-3, "transformers' example for the language adapters of MMS"),
    ("speech_llm", "full"): (1e-4, "SLAM-ASR (Ma et al. 2024), which trains the projector between pretrained parts"),
    ("speech_llm", "lora"): (1e-4, "SLAM-ASR (Ma et al. 2024) and VoxLM, projector and adapters together"),
    ("transformer", "full"): (1e-5, "how EEND is adapted to real conversations (Horiguchi et al. 2020)"),
    ("transformer", "ssl"): (1e-3, "DiariZen, for all but its WavLM, which `optim.groups` gives 2e-5"),
    ("", "full"): (1e-5, "common for full fine-tuning of pretrained speech models"),
    ("", "lora"): (1e-4, "ten times a common rate of full fine-tuning (LoRA Without Regret, 2025)"),
    ("", "scratch"): (1e-3, "what this project's own small models are trained with"),
}
"""(family, method) -> (peak learning rate, where it is from); the family "" is for all others."""

EPOCHS: dict[str, list[tuple[float, int]]] = {
    "full": [(1, 10), (10, 5), (100, 3), (1000, 2), (float("inf"), 1)],
    "new head": [(1, 50), (10, 30), (100, 15), (1000, 10), (float("inf"), 5)],
    "scratch": [(10, 100), (100, 60), (1000, 30), (float("inf"), 15)],
}
"""Epochs up to so many hours, for models that know the task already, with a new head, and from scratch."""
ORIGINS = {
    "full": "a rule of thumb between published recipes: 3 epochs for Voxtral, about 10 for Whisper on 8 h of Hindi, 1 "
    "for Qwen3-ASR",
    "new head": "a rule of thumb around the 15 epochs of transformers' CTC example",
    "scratch": "a rule of thumb: a model that starts from nothing has to hear its data many times",
}


@dataclass(frozen=True)
class Suggestion:
    """Values to start from."""

    method: str
    lr: float
    lr_origin: str
    epochs: int
    epochs_origin: str


def suggest(family: str, method: str, hours: float, parameters: float = 0.0) -> Suggestion:
    """A starting point for a family's type and a method: full, lora, new head, language adapter or scratch.

    `hours` of training data, `parameters` of the model (Whisper's rate goes by its size). Below an hour the learning
    rate of fine-tuning is halved: OmniVoice's users report over-fitting within 500 steps on 240 clips at 5e-5.
    """
    if (family, method) == ("seq2seq", "full"):
        lr = next(rate for most, rate in WHISPER if parameters <= most)
        origin = (
            "1/40 of the rate that a Whisper of this size was pretrained with (Radford et al. 2022); "
            "transformers' example for small takes 1e-5"
        )
    else:
        lr, origin = RATES.get((family, method)) or RATES.get(("", method)) or RATES["", "full"]
    if hours < 1 and method != "scratch":
        lr, origin = lr / 2, origin + "; halved for less than an hour of data"
    kind = method if method in EPOCHS else "new head" if method in ("language adapter", "ssl") else "full"
    epochs = next(count for most, count in EPOCHS[kind] if hours <= most)
    if method == "language adapter":
        return Suggestion(method, lr, origin, 4, "transformers' example for the language adapters of MMS")
    return Suggestion(method, lr, origin, epochs, ORIGINS[kind])


def method_of(model: dict[str, Any], head: bool = True) -> str:
    """Trained part of a section `model:` (plain data, as in a file). `head`: whether the pretrained model of the family
    ctc comes with a head of its own."""
    if not (model.get("init") or _pretrained(model)):
        return "scratch"
    if model.get("ssl") and not model.get("init"):
        return "ssl"
    if model.get("lora"):
        return "lora"
    if model.get("adapter"):
        return "language adapter" if model["adapter"].get("only", True) else "full"
    if model["type"] == "ctc" and not model.get("init") and (model.get("alphabet") == "transcripts" or not head):
        return "new head"
    return "full"


def _pretrained(section: Any) -> bool:
    if not isinstance(section, dict):
        return False
    return bool(section.get("from")) or any(map(_pretrained, section.values()))


def notes(suggestion: Suggestion, lr: float, epochs: float | None) -> list[str]:
    """Sentences about values that are far from the suggested ones; `epochs` is None for a stream."""
    lines = []
    for key, value, good in (("optim.lr", lr, suggestion.lr), ("epochs", epochs, float(suggestion.epochs))):
        if not value or good / FAR <= value <= good * FAR:
            continue
        times = max(value / good, good / value)
        lines.append(f"{key} {value:g} is {times:.0f} times {'above' if value > good else 'below'} the suggestion.")
    return lines
