"""Tiny English-only Whisper with random weights, for the tests here and in tests/walkthrough."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperForConditionalGeneration


def make_whisper(
    text: str, vocab_size: int, decoder_layers: int = 1
) -> tuple[WhisperForConditionalGeneration, PreTrainedTokenizerFast]:
    """The model, from seed 0, and a byte-level tokenizer that knows the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator([text] * 9, trainer)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=vocab_size,
        num_mel_bins=80,
        d_model=32,
        encoder_layers=1,
        decoder_layers=decoder_layers,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0])
    return WhisperForConditionalGeneration(config), fast
