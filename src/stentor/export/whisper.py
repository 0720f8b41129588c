"""Shared parts of Whisper's exports: bytes of its tokens, and word times by its attention."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.data.trained_speech import with_room
from stentor.data.word_units import units
from stentor.inference.align.whisper import FRAME, alignment_heads, sharpened, tokens_of, warp
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.seq2seq import whisper


def not_whisper(bundle: Bundle, runtime: str) -> str | None:
    """Reason why a model cannot run where Whisper alone can; None for Whisper."""
    title = bundle.family.facts().title  # type: ignore[attr-defined]
    return None if isinstance(bundle.model, whisper.Model) else f"{runtime} runs Whisper, not {title}"


def token_bytes(tokenizer: Any) -> dict[int, bytes]:
    """Bytes of each token of texts, without special tokens; for tokenizers of bytes and those with `▁` for spaces."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    of_letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    level = "ByteLevel" in str(tokenizer.backend_tokenizer.decoder)
    tokens: dict[int, bytes] = {}
    special = tokenizer.get_added_vocab()
    for token, i in tokenizer.get_vocab().items():
        if token in special:
            continue
        if level:
            tokens[i] = bytes(of_letters[letter] for letter in token)
        elif len(token) == 6 and token.startswith("<0x"):
            tokens[i] = bytes([int(token[3:5], 16)])
        else:
            tokens[i] = token.replace("▁", " ").encode()
    return tokens


@contextmanager
def attention_weights(model: Any) -> Iterator[None]:
    """Inside, Whisper's decoder gives its attention weights, which only the eager kernel has."""
    if not isinstance(model, whisper.Model):
        yield
        return
    decoder = model.model.decoder
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        yield
    finally:
        decoder.set_attn_implementation(before)


def words_of(
    pieces: Sequence[str], starts: Sequence[float], ends: Sequence[float], language: str | None
) -> list[dict[str, Any]]:
    """Words of a text with `start` and `end`, of the texts of its tokens and their times in seconds."""
    places = np.cumsum([0, *map(len, pieces)]).tolist()
    spans = list(pairwise(places))
    words = []
    for unit in units("".join(pieces), language):
        tokens = tokens_of(spans, *unit["span"])
        words.append({"word": unit["word"], "start": starts[tokens[0]], "end": ends[tokens[-1]]})
    return words


def pieces_of(processor: Any, ids: Sequence[int]) -> list[str]:
    """Text that each token adds."""
    texts = ["", *(processor.decode(ids[: i + 1]).rstrip("�") for i in range(len(ids)))]
    return [b[len(a) :] for a, b in pairwise(texts)]


def with_times(model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Texts as `Transcribe.predict` gives them, and the words' times as `stentor align` finds them: from the attention
    of the alignment heads (see `stentor.inference.align.whisper`)."""
    processor: Any = model.bundle.processor
    network: Any = model.bundle.model
    heads = alignment_heads(network)
    outputs = []
    for example, earlier in zip(*with_room(model.bundle.traits.trained_speech, processor, examples)):
        frames, most = frames_of(example), processor.max_new_tokens(len(example.audio) / whisper.RATE)  # type: ignore[arg-type]
        inputs = processor.collate([example], labels=False).inputs
        [answer] = network.generate(inputs, most, {processor.eos_id})
        prompt, ids = prompt_of(network, inputs), [i for i in answer.ids if i <= processor.plain_id]
        with torch.no_grad(), attention_weights(network):
            given = torch.tensor([[*prompt, *ids]])
            states = network.encode(inputs["features"])
            every = network.decode(states, given, use_cache=False, output_attentions=True).cross_attentions
        weights = torch.stack([every[layer][0, head] for layer, head in heads])[:, len(prompt) - 1 :, :frames]
        path = (warp(sharpened(weights).numpy()) * FRAME - earlier).tolist()
        words = words_of(pieces_of(processor, ids), path[:-1], path[1:], example.language)
        outputs.append({"text": processor.decode(ids).strip(), "words": words})
    return outputs


def prompt_of(network: Any, inputs: dict[str, torch.Tensor]) -> list[int]:
    """The tokens before the text; a language that is not named is the one that the model hears."""
    with torch.no_grad():
        states = network.encode(inputs["features"]) if "detect" in inputs else None
        prompt: list[int] = network.prompted(states, inputs["input_ids"], inputs.get("detect"))[0].tolist()
    return prompt


def frames_of(example: Example) -> int:
    """Encoder frames of a clip."""
    assert example.audio is not None
    return max(1, round(len(example.audio) / whisper.RATE / FRAME))
