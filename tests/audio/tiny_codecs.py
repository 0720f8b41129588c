"""The codecs of transformers, built small with random weights that give many different codes."""

from pathlib import Path

RATIOS = [8, 5, 4, 2, 3]
TRANSFORMER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SETTINGS = {
    "higgs_audio_v2": {
        "acoustic_model_config": {
            "model_type": "dac",
            "encoder_hidden_size": 4,
            "downsampling_ratios": RATIOS,
            "decoder_hidden_size": 32,
            "hidden_size": 16,
            "upsampling_ratios": RATIOS,
        },
        "semantic_model_config": {
            **TRANSFORMER,
            "model_type": "hubert",
            "conv_dim": [8] * 7,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "mask_time_prob": 0.0,
        },
        "codebook_size": 1024,
        "codebook_dim": 8,
        "target_bandwidths": [0.5, 1, 1.5, 2],
    },
    "mimi": {
        **TRANSFORMER,
        "num_filters": 4,
        "upsampling_ratios": [4, 4],
        "codebook_size": 16,
        "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8,
        "num_quantizers": 12,
        "num_key_value_heads": 2,
        "upsample_groups": 16,
        "head_dim": 8,
        "sliding_window": 20,
    },
    "dac": {
        "encoder_hidden_size": 4,
        "downsampling_ratios": [2, 5],
        "decoder_hidden_size": 16,
        "n_codebooks": 3,
        "codebook_size": 16,
        "codebook_dim": 4,
        "sampling_rate": 24000,
    },
    "encodec": {
        "num_filters": 4,
        "hidden_size": 8,
        "upsampling_ratios": [5, 4],
        "codebook_size": 16,
        "num_lstm_layers": 1,
        "target_bandwidths": [4.8, 9.6, 19.2],
    },
    "xcodec2": {
        **TRANSFORMER,
        "hidden_size": 64,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "encoder_hidden_size": 4,
        "quantization_dim": 80,
        "semantic_model_config": {
            **TRANSFORMER,
            "model_type": "wav2vec2-bert",
            "conv_depthwise_kernel_size": 3,
            "feature_projection_input_dim": 160,
        },
    },
}
KINDS = tuple(SETTINGS)


def build(kind: str, folder: Path, **settings) -> Path:
    """Save one to a folder."""
    import torch

    from stentor.models.codecs.base import Codec

    torch.manual_seed(0)
    model_class = Codec.model_validate(kind).model_class()
    model = model_class(model_class.config_class(**{**SETTINGS[kind], **settings}))
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
