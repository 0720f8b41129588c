"""The codecs of transformers, built small with random weights that give many different codes."""

from pathlib import Path

KINDS = ("higgs_audio_v2", "mimi", "dac", "encodec", "xcodec2")


def build(kind: str, folder: Path, **settings) -> Path:
    """Save one to a folder."""
    import torch

    torch.manual_seed(0)
    model = globals()[f"_{kind}"](**settings)
    with torch.no_grad():
        for name, buffer in model.named_buffers():  # codebooks, which transformers starts at zero
            if name.endswith((".embed", ".embed_sum")):
                buffer.normal_(std=0.003)
        if kind == "encodec":  # its frames lie close together, far from zero
            book = model.quantizer.layers[0].codebook.embed
            noise = torch.randn(1, model.config.audio_channels, model.config.hop_length * len(book))
            book.copy_(model.encoder(noise)[0].T)
        if kind == "xcodec2":
            model.quantizer.project_in.weight.mul_(30000)
    model.save_pretrained(folder)
    return folder


def _mimi(**settings):
    from transformers import MimiConfig, MimiModel

    small = {
        "hidden_size": 16,
        "num_filters": 4,
        "upsampling_ratios": [4, 4],
        "codebook_size": 16,
        "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8,
        "num_quantizers": 12,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "upsample_groups": 16,
        "head_dim": 8,
        "sliding_window": 20,
    }
    return MimiModel(MimiConfig(**{**small, **settings}))


def _dac(**settings):
    from transformers import DacConfig, DacModel

    small = {
        "encoder_hidden_size": 4,
        "downsampling_ratios": [2, 5],
        "decoder_hidden_size": 16,
        "n_codebooks": 3,
        "codebook_size": 16,
        "codebook_dim": 4,
        "sampling_rate": 24000,
    }
    return DacModel(DacConfig(**{**small, **settings}))


def _encodec(**settings):
    from transformers import EncodecConfig, EncodecModel

    small = {
        "num_filters": 4,
        "hidden_size": 8,
        "upsampling_ratios": [5, 4],
        "codebook_size": 16,
        "num_lstm_layers": 1,
        "target_bandwidths": [4.8, 9.6, 19.2],
    }
    return EncodecModel(EncodecConfig(**{**small, **settings}))


def _higgs_audio_v2(**settings):
    from transformers import HiggsAudioV2TokenizerConfig

    from stentor.models.codecs.base import Codec

    ratios = [8, 5, 4, 2, 3]
    acoustic = {
        "model_type": "dac",
        "encoder_hidden_size": 4,
        "downsampling_ratios": ratios,
        "decoder_hidden_size": 32,
        "hidden_size": 16,
        "upsampling_ratios": ratios,
    }
    semantic = {
        "model_type": "hubert",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "conv_dim": [8] * 7,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "mask_time_prob": 0.0,
    }
    small = {
        "acoustic_model_config": acoustic,
        "semantic_model_config": semantic,
        "codebook_size": 1024,
        "codebook_dim": 8,
        "target_bandwidths": [0.5, 1, 1.5, 2],
    }
    model = Codec.model_validate("higgs_audio_v2").model_class()
    return model(HiggsAudioV2TokenizerConfig(**{**small, **settings}))


def _xcodec2(**settings):
    from transformers import Xcodec2Config, Xcodec2Model

    semantic = {
        "model_type": "wav2vec2-bert",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "conv_depthwise_kernel_size": 3,
        "feature_projection_input_dim": 160,
    }
    small = {
        "hidden_size": 64,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "encoder_hidden_size": 4,
        "quantization_dim": 80,
        "semantic_model_config": semantic,
    }
    return Xcodec2Model(Xcodec2Config(**{**small, **settings}))
