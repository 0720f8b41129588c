"""Audio language models of a few thousand parameters: the part that tiny Voxtral and tiny Qwen3-ASR models share."""

from pathlib import Path

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.losses.base import Loss
from stentor.models.audio_llm.modeling import transformers_name
from stentor.models.base import Bundle, Family, TaskRequirements

LORA = {"rank": 2, "alpha": 4, "dropout": 0.0, "targets": ["language_model.*.q_proj", "language_model.*.v_proj"]}
LENGTHS = (0.5, 5.0, 29.9, 30.0, 30.1, 61.0)


def build(config: dict, tokenizer: Path | None, /, seed: int = 0, **keys) -> Bundle:
    """A bundle in evaluation mode, with weights from `seed`; without a tokenizer `keys` say where both come from."""
    torch.manual_seed(seed)
    section = {"type": "audio_llm", "max_text_tokens": 64, "token_rate": 20.0, **keys}
    if tokenizer is not None:
        section = {"config": config, "tokenizer": str(tokenizer), **section}
    bundle = Family.model_validate(section).build(TaskRequirements("transcribe", ("text",)))
    bundle.model.eval()
    return bundle


def examples(seconds, texts=("one two", "three", "nine eight seven"), languages=("en", None, "zh"), seed=0):
    """Noise of these lengths; texts and languages in turn."""
    rng = np.random.default_rng(seed)
    return [
        Example(
            str(i),
            (0.1 * rng.standard_normal(round(s * 16000))).astype(np.float32),
            texts[i % len(texts)],
            languages[i % len(languages)],
        )
        for i, s in enumerate(seconds)
    ]


def loss(bundle, items) -> float:
    """Our summed loss of the items in one batch."""
    batch = bundle.processor.collate(items)
    with torch.no_grad():
        outputs = bundle.model(**batch.inputs)
    return Loss.model_validate("cross_entropy").sum(**outputs["text"]).item()


def labels_of(inputs) -> torch.Tensor:
    """A batch's targets as transformers takes them: where the token itself is read, -100 elsewhere."""
    ids = inputs["input_ids"]
    labels = torch.full_like(ids, -100)
    labels.view(-1)[inputs["label_index"] + 1] = inputs["targets"]
    assert torch.equal(labels[labels >= 0], ids[labels >= 0])
    return labels


def plain(bundle, model_class):
    """transformers' model with the weights of a bundle."""
    model = model_class(bundle.model.config)
    model.load_state_dict({transformers_name(n): t for n, t in bundle.model.state_dict().items()})
    return model.eval()


def byte_pairs(text: str, size: int):
    """A tokenizer of the 256 bytes, and of frequent pairs in a text up to `size`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer, learner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator([text], trainer)
    return learner


def qwen2_tokenizer(folder: Path, text: str, size: int, **tokens):
    """The same as a Qwen2Tokenizer."""
    from transformers import Qwen2Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    byte_pairs(text, size).model.save(str(folder))
    return Qwen2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), unk_token=None, **tokens)
