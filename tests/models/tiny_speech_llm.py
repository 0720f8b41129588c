"""Speech LLMs of a few thousand parameters, for tests here and in tests/same."""

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.losses.base import Loss
from stentor.models.base import Bundle, Family, TaskRequirements

_WAVE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": (16,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
ENCODERS = {
    "whisper": {
        "model_type": "whisper",
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
    },
    "parakeet": {
        "model_type": "parakeet_encoder",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "subsampling_factor": 4,
        "subsampling_conv_channels": 8,
    },
    "wav2vec2-base": dict(model_type="wav2vec2", **_WAVE),
    "wav2vec2-large": dict(model_type="wav2vec2", feat_extract_norm="layer", do_stable_layer_norm=True, **_WAVE),
    "hubert": dict(model_type="hubert", **_WAVE),
    "wavlm": dict(model_type="wavlm", **_WAVE),
}
_LLM = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
LLMS = {
    "qwen2": dict(model_type="qwen2", **_LLM),
    "llama": dict(model_type="llama", **{**_LLM, "tie_word_embeddings": False}),
    "qwen3": dict(model_type="qwen3", head_dim=8, **_LLM),
    "mistral": dict(model_type="mistral", sliding_window=16, **_LLM),
    "gemma2": dict(
        model_type="gemma2", head_dim=8, final_logit_softcapping=5.0, sliding_window=16, query_pre_attn_scalar=8, **_LLM
    ),
    "granite": dict(model_type="granite", logits_scaling=3.0, **_LLM),
    "cohere": dict(model_type="cohere", logit_scale=0.25, **_LLM),
    "phi": dict(model_type="phi", **{**_LLM, "num_key_value_heads": 4, "tie_word_embeddings": False}),
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
}
TEXTS = ("one two three", "nine eight", "zero zero seven")


def family(encoder="whisper", llm="qwen2", **sections):
    """A family; `encoder` and `llm` are names of configs here or whole sections, `sections` other keys of `model:`."""
    section = {
        "type": "speech_llm",
        "encoder": {"config": ENCODERS[encoder]} if isinstance(encoder, str) else encoder,
        "llm": {"config": LLMS[llm]} if isinstance(llm, str) else llm,
        "tokenizer": {"type": "characters"},
        "prompt": {"instruction": None},
        **sections,
    }
    return Family.model_validate({key: value for key, value in section.items() if value is not None})


def build(*args, texts=TEXTS, seed=0, **sections) -> Bundle:
    """A bundle in evaluation mode, with weights from `seed`."""
    torch.manual_seed(seed)
    section = family(*args, **sections)
    terms = ("text", "ctc") if section.ctc else ("text",)
    bundle = section.build(TaskRequirements("transcribe", terms, lambda: iter(texts)))
    bundle.model.eval()
    return bundle


def examples(seconds=(1.3, 0.6, 0.97), texts=TEXTS, seed=0, **fields) -> list[Example]:
    """Noise of these lengths with these texts."""
    rng = np.random.default_rng(seed)
    return [
        Example(str(i), (0.1 * rng.standard_normal(round(s * 16000))).astype(np.float32), t, **fields)
        for i, (s, t) in enumerate(zip(seconds, texts))
    ]


def sums(bundle, items, packed=False):
    """Summed losses of a batch by term."""
    batch = bundle.processor.collate(items, packed=packed)
    outputs = bundle.model(**batch.inputs)
    losses = {"text": Loss.model_validate("cross_entropy"), "ctc": Loss.model_validate("ctc")}
    return {term: losses[term].sum(**prediction) for term, prediction in outputs.items()}


def gradients(bundle, items, packed=False):
    """Gradients of the summed losses by parameter name."""
    bundle.model.zero_grad(set_to_none=True)
    sum(sums(bundle, items, packed).values()).backward()
    return {name: p.grad.clone() for name, p in bundle.model.named_parameters() if p.grad is not None}


def own_loss(bundle, items):
    """The language model's own loss with labels, summed, on the same padded batch: what `text` must equal."""
    inputs = bundle.processor.collate(items).inputs
    model = bundle.model
    hidden, _ = model.frames(inputs["features"], inputs["feature_lengths"])
    embeds = model.embed(hidden, inputs["input_ids"], inputs["audio_index"], inputs["audio_rows"])
    labels = torch.full_like(inputs["input_ids"], -100)
    labels.view(-1)[inputs["label_index"] + 1] = inputs["targets"]
    sequence = bundle.processor.collate(items, labels=True)
    mask = torch.zeros_like(labels)
    lengths = [len(bundle.processor.sequence(e, len(e.audio), True)) for e in items]
    for row, length in zip(mask, lengths):
        row[:length] = 1
    mean = model.llm(inputs_embeds=embeds, attention_mask=mask, labels=labels).loss
    return mean * sequence.counts["text"]


def spoken_for(encoder="whisper", llm="qwen2", kind="attention", shaken=("aligner", "llm"), rate=100, **sections):
    """A bundle with an aligner whose parts are shaken, so that they say something."""
    torch.manual_seed(0)
    aligner = {"kind": kind, "width": 16, "heads": 2, "rate": rate}
    section = family(encoder, llm, aligner=aligner, **{"token_rate": 4.0, **sections})
    terms = ("text", "alignment", *(["ctc"] if section.ctc else []))
    bundle = section.build(TaskRequirements("words", terms, lambda: iter(TEXTS)))
    for part in shaken:
        for parameter in bundle.model.get_submodule(part).parameters():
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    bundle.model.eval()
    return bundle
