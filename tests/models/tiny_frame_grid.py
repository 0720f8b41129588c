"""Tiny models on the frame grid, Voxtral Realtime and Kyutai STT, with processors made offline."""

from pathlib import Path

import numpy as np
import tiny_voxtral

from stentor.data.batch import Example

REALTIME = {
    "model_type": "voxtral_realtime",
    "audio_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
        "num_mel_bins": 128,
    },
    "text_config": {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
    },
}
KYUTAI = {
    "model_type": "kyutai_speech_to_text",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 32,
    "ffn_dim": 128,
    "num_codebooks": 4,
    "codebook_vocab_size": 65,
    "audio_bos_token_id": 64,
    "codec_config": {
        "model_type": "mimi",
        "num_quantizers": 4,
        "hidden_size": 16,
        "num_filters": 4,
        "num_residual_layers": 1,
        "codebook_size": 64,
        "vector_quantization_hidden_dimension": 16,
        "codebook_dim": 16,
        "upsample_groups": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 32,
    },
}
TEXTS = ("zero one two three four", "five six seven eight nine", "a b c d e")


def write_tekken(folder: Path) -> Path:
    """A tekken.json with few words, the special tokens of streams and the audio settings of Voxtral Realtime."""
    tokens = {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 32: "[STREAMING_PAD]", 33: "[STREAMING_WORD]"}
    audio = {
        "transcription_format": "streaming",
        "transcription_delay_ms": 480,
        "streaming_look_ahead_ms": 2.5,
        "streaming_look_back_ms": 52.5,
        "streaming_n_left_pad_tokens": 32,
    }
    return tiny_voxtral.write_tekken(folder, 2000, tokens, audio)


def kyutai_processor(delay: float = 0.5):
    """transformers' processor of Kyutai's models over a vocabulary of the words of `TEXTS`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import KyutaiSpeechToTextFeatureExtractor, KyutaiSpeechToTextProcessor, PreTrainedTokenizerFast

    words = sorted({f"▁{word}" for text in TEXTS for word in text.split()})
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", "<pad>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    extractor = KyutaiSpeechToTextFeatureExtractor(audio_delay_seconds=delay, audio_silence_prefix_seconds=0.0)
    return KyutaiSpeechToTextProcessor(extractor, fast)


def write_kyutai(folder: Path, seed: int = 0) -> Path:
    """The folder of a Kyutai model of transformers, untrained but for a codec whose tokens tell sounds apart."""
    import torch
    from transformers import KyutaiSpeechToTextConfig, KyutaiSpeechToTextForConditionalGeneration

    torch.manual_seed(seed)
    processor = kyutai_processor()
    words = len(processor.tokenizer)
    tables = KYUTAI["num_codebooks"] * KYUTAI["codebook_vocab_size"]
    ids = {"vocab_size": words + 1, "bos_token_id": words, "audio_pad_token_id": words + 1 + tables}
    keys = {key: value for key, value in KYUTAI.items() if key != "model_type"}
    model = KyutaiSpeechToTextForConditionalGeneration(KyutaiSpeechToTextConfig(**keys, **ids))
    spread_codes(model.codec_model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def spread_codes(codec) -> None:
    """Codebooks around what the codec makes of noises, each of what the ones before it left."""
    import torch

    torch.manual_seed(1)
    loud = torch.logspace(-3, 0, 64)[:, None, None]
    latents = codec.encoder(loud * torch.randn(64, 1, 4 * 1920)).latents.detach()
    quantizer = codec.quantizer
    for group in (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer):
        rest = latents if group.input_proj is None else group.input_proj(latents)
        for layer in group.layers:
            book = layer.codebook
            frames = rest.transpose(1, 2).flatten(0, 1)
            book.embed_sum.copy_(frames[torch.randperm(len(frames))[: len(book.embed_sum)]])
            rest = rest - layer.decode(layer.encode(rest))


def item(name, seconds, text):
    """Noise of which each word of the text has an even share; as 16 bits hold it, as which it reaches transformers."""
    rng = np.random.default_rng(len(text))
    audio = (rng.integers(-3000, 3000, round(seconds * 16000)) / 32768).astype(np.float32)
    words = text.split()
    share = seconds / max(len(words), 1)
    times = [{"word": w, "start": share * i, "end": share * (i + 0.8)} for i, w in enumerate(words)]
    return Example(name, audio, text, "en", extra={"times": times})


ITEMS = [item("a", 2.0, "zero one two"), item("b", 3.33, "five six seven eight nine"), item("c", 0.5, "four")]
