"""Tiny models of the family `tts`, with their processors and codecs made offline."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_audio_llm import byte_pairs
from tiny_omnivoice import enlarge

from stentor.data.batch import Example
from stentor.data.conditions import Spoken, draw
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.tasks.speak.task import Speak

BOOKS, ENTRIES = 4, 32
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"head_dim": 8}
MIMI = {
    "model_type": "mimi",
    "sampling_rate": 24000,
    "num_filters": 4,
    "num_residual_layers": 1,
    "upsampling_ratios": [8, 6, 5, 4],
    "hidden_size": 32,
    "codebook_size": ENTRIES,
    "codebook_dim": 16,
    "vector_quantization_hidden_dimension": 16,
    "num_quantizers": BOOKS,
    "num_semantic_quantizers": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "upsample_groups": 32,
    "sliding_window": 20,
}
CSM = {
    "model_type": "csm",
    **SIZES,
    "num_hidden_layers": 2,
    "num_codebooks": BOOKS,
    "vocab_size": ENTRIES + 3,
    "codebook_pad_token_id": ENTRIES + 2,
    "max_position_embeddings": 512,
    "depth_decoder_config": {**SIZES, "num_hidden_layers": 1, "max_position_embeddings": BOOKS + 1},
    "codec_config": MIMI,
}
DIA = {
    "model_type": "dia",
    "encoder_config": {**SIZES, "num_hidden_layers": 2},
    "decoder_config": {
        **SIZES,
        "num_hidden_layers": 2,
        "cross_num_attention_heads": 4,
        "cross_num_key_value_heads": 4,
        "cross_head_dim": 8,
    },
    "delay_pattern": [0, 2, 3],
}
TEXTS = ("one two three", "four", "five six", "seven eight nine zero")


def write_csm(folder: Path, config: dict | None = None) -> Path:
    """A CsmProcessor with a tokenizer of bytes; with `config` a model beside it, whose codec has entries."""
    from transformers import CsmConfig, CsmForConditionalGeneration, CsmProcessor, EncodecFeatureExtractor

    tokenizer = byte_tokenizer("<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")
    extractor = EncodecFeatureExtractor(feature_size=1, sampling_rate=24000)
    processor = CsmProcessor(extractor, tokenizer)
    processor.save_pretrained(folder)
    if config is not None:
        ids = {"text_vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id}
        ids |= {f"{name}_id": getattr(processor, f"{name}_id") for name in ("audio_token", "audio_eos_token")}
        ids["pad_token_id"] = processor.audio_token_id
        depth = {
            "vocab_size": config["vocab_size"],
            "num_codebooks": BOOKS,
            "backbone_hidden_size": config["hidden_size"],
        }
        depth |= config["depth_decoder_config"]
        torch.manual_seed(0)
        model = CsmForConditionalGeneration(CsmConfig(**{**config, **ids, "depth_decoder_config": depth}))
        with torch.no_grad():
            for name, buffer in model.codec_model.named_buffers():
                if name.endswith("embed_sum"):  # which transformers starts at zero
                    buffer.normal_(std=0.003)
        model.save_pretrained(folder)
    return folder


def byte_tokenizer(bos: str, eos: str, *more: str):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs("", 256), bos_token=bos, eos_token=eos, pad_token=eos
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(more)})
    return tokenizer


def write_dia(folder: Path) -> Path:
    """A DiaProcessor with a DAC of three codebooks."""
    from transformers import DacConfig, DacModel, DiaFeatureExtractor, DiaProcessor, DiaTokenizer

    sizes = {"encoder_hidden_size": 8, "decoder_hidden_size": 32, "downsampling_ratios": [4, 5, 8, 8]}
    torch.manual_seed(0)
    codec = DacModel(DacConfig(**sizes, n_codebooks=3, codebook_size=ENTRIES, codebook_dim=4, sampling_rate=16000))
    codec.save_pretrained(folder / "dac")
    codec = DacModel.from_pretrained(folder / "dac")
    extractor = DiaFeatureExtractor(sampling_rate=16000, hop_length=1280)
    DiaProcessor(extractor, DiaTokenizer(), audio_tokenizer=codec).save_pretrained(folder)
    return folder


CONFIGS = {"csm": CSM, "dia": DIA}
WRITE = {"csm": write_csm, "dia": write_dia}


def source(kind: str, folder: Path, config: dict) -> dict[str, Any]:
    """Keys of a section for an untrained model: of CSM, whose codec is a part of it, a checkpoint."""
    if kind == "csm":
        return {"from": str(write_csm(folder, config))}
    return {"config": config, "tokenizer": str(WRITE[kind](folder))}


def build(kind: str, folder: Path, **keys) -> Bundle:
    """A bundle with weights as large as trained ones, so that differences show."""
    section = {"type": "tts", **(keys if "from" in keys else {**source(kind, folder / kind, CONFIGS[kind]), **keys})}
    torch.manual_seed(0)
    bundle = Family.model_validate(section).build(TaskRequirements("speak", ("codes",)))
    if "from" not in keys:
        enlarge(bundle.model)
    return bundle


def codes_of(bundle: Bundle, seed: int | list[int], frames: int) -> np.ndarray:
    """Codes at random."""
    rng, processor = np.random.default_rng(seed), bundle.processor
    if processor.vocabulary is None:
        return rng.standard_normal((processor.codebooks, frames)).astype(np.float32)
    return rng.integers(0, processor.vocabulary, (processor.codebooks, frames)).astype(np.int16)


def examples(bundle: Bundle, frames=(17, 5, 30, 11), task: Speak | None = None, seed: int = 0) -> list[Example]:
    """Items with codes at random."""
    made = []
    task = task or Speak(drop_cond_ratio=0.0)
    for number, (count, text) in enumerate(zip(frames, TEXTS)):
        rng = np.random.default_rng([seed, number])
        extra = {"codes": codes_of(bundle, [100 + seed, number], count), "instruct": None}
        extra["conditions"] = draw(Spoken(text), task, rng)
        made.append(Example(f"item{number}", text=text, rng=rng, extra=extra))
    return made


# transformers alone

DELAYS = {"delay_pattern": [0, 2, 3], "eos_token_id": ENTRIES, "pad_token_id": ENTRIES + 1, "bos_token_id": ENTRIES + 2}
DIA_AUDIO = {**DELAYS, "sampling_rate": 16000}


def csm_turn(text: str, audio: bool) -> str:
    return f"<|begin_of_text|>[0]{text}<|end_of_text|>" + "<|AUDIO|><|audio_eos|>" * audio


def plain_inputs(kind: str, processor, texts, audios):
    """A training batch as transformers' processor makes it."""
    if kind == "csm":
        return processor(text=[csm_turn(t, True) for t in texts], audio=list(audios), output_labels=True)
    texts = [f"[S1] {t}" for t in texts]
    return processor(text=texts, audio=list(audios), output_labels=True, generation=False, **DIA_AUDIO)


def csm_said(model, processor, text: str, voice, limit: int) -> np.ndarray:
    prompt = csm_turn(text, False)
    inputs = processor(text=[prompt])
    if voice is not None:
        inputs = processor(text=[csm_turn(voice[0], True) + prompt], audio=[voice[1]])
    codes = model.generate(**inputs, max_new_tokens=limit, do_sample=False, depth_decoder_do_sample=False)[0]
    ends = (codes[:, :-1] == 0).all(-1).nonzero()[:1, 0].tolist()
    return codes[: ends[0] if ends else None].T.numpy()


def dia_said(model, processor, text: str, voice, limit: int) -> np.ndarray:
    """By transformers' processor too, whose codec is asked what it is to decode."""
    inputs = processor(text=[f"[S1] {text}"], **DIA_AUDIO)
    length = None
    if voice is not None:
        inputs = processor(text=[f"[S1] {voice[0]} {text}"], audio=[voice[1]], **DIA_AUDIO)
        length = processor.get_audio_prompt_len(inputs["decoder_attention_mask"], **DELAYS)
    out = model.generate(**inputs, max_new_tokens=limit + 4, do_sample=False)
    decode, decoded = processor.audio_tokenizer.decode, []

    def listen(audio_codes):
        decoded.append(audio_codes)
        return decode(audio_codes=audio_codes)

    processor.audio_tokenizer.decode = listen
    processor.batch_decode(out, audio_prompt_len=length, **DELAYS)
    processor.audio_tokenizer.decode = decode
    return decoded[0][0].numpy()


SAID = {"csm": csm_said, "dia": dia_said}
