"""Tokenizers of bytes for untrained models, and Whisper tokenizers with fewer merges than OpenAI's."""

import json
from collections.abc import Sequence
from typing import Any

END, START, PLAIN = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"


def whisper_tokenizer() -> Any:
    """A WhisperTokenizer with one token per byte, then Whisper's special tokens in Whisper's order."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    vocabulary = {byte: i for i, byte in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], pad_token=END)
    task = ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", PLAIN]
    special = [END, START, *(f"<|{code}|>" for code in LANGUAGES), *task]
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.set_prefix_tokens()  # made before these tokens were there
    return tokenizer


def byte_tokenizer(special: Sequence[str], **roles: str) -> Any:
    """A PreTrainedTokenizerFast with the `special` tokens first, then one token per byte. `roles`: which of them is the
    `bos_token`, `eos_token` and so on."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **roles)


def generation_facts(tokenizer: Any) -> dict[str, Any]:
    """Settings of a multilingual tokenizer for transformers' generation of Whisper."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    ids = tokenizer.get_vocab()
    return {
        "is_multilingual": True,
        "decoder_start_token_id": ids[START],
        "bos_token_id": ids[END],
        "eos_token_id": ids[END],
        "pad_token_id": ids[END],
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": ids[PLAIN],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "return_timestamps": False,
        "suppress_tokens": [],
        "begin_suppress_tokens": [],
    }


def keep_merges(tokenizer: Any, count: int) -> None:
    """Leave the first `count` merges of a WhisperTokenizer; its vocabulary stays as it is."""
    from tokenizers.models import BPE

    settings = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in settings["merges"][:count]]
    tokenizer.backend_tokenizer.model = BPE(vocab=settings["vocab"], merges=merges)
