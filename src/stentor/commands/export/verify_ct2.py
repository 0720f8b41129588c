"""Verification of a CTranslate2 export: its transcripts of clips, as the task `transcribe` gives them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stentor.data.batch import Example
from stentor.models.base import Bundle


def transcribe(folder: Path, bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Greedy transcripts of the clips by the model in `folder`: dicts with `text` and `log_prob`, the mean over the
    tokens and the end. `bundle` is the Whisper that it was made from; its processor gives features, prompts and limits.
    """
    import ctranslate2

    processor: Any = bundle.processor
    model = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="default")
    outputs = []
    for example in examples:
        inputs = processor.collate([example], labels=False).inputs
        with torch.no_grad():  # a language that is not named is the one that our model hears
            recogniser: Any = bundle.model
            states = recogniser.encode(inputs["features"]) if "detect" in inputs else None
            prompt = recogniser.prompted(states, inputs["input_ids"], inputs.get("detect"))[0].tolist()
        features = ctranslate2.StorageView.from_array(inputs["features"].numpy())
        limit = processor.max_new_tokens(len(example.audio) / processor.sample_rate)  # type: ignore[arg-type]
        # It writes at most half of `max_length` tokens, and no more than `max_length` with the prompt.
        most = max(2 * limit, len(prompt) + limit)
        result = model.generate(features, [prompt], beam_size=1, max_length=most, return_scores=True, length_penalty=1)[
            0
        ]
        ids = [i for i in result.sequences_ids[0] if i != processor.eos_id][:limit]
        outputs.append({"text": processor.decode(ids).strip(), "log_prob": float(result.scores[0])})
    return outputs
