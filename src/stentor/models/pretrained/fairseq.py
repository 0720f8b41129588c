"""wav2vec 2.0 and WavLM in fairseq's tensor names: transformers' models made from the tensors alone.

Baevski et al. 2020, "wav2vec 2.0: a framework for self-supervised learning of speech representations"; Chen et al.
2022, "WavLM: large-scale self-supervised pre-training for full stack speech processing". Checkpoints of other models
hold their encoder so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

RENAMES = (
    (r"^layer_norm\.", "feature_projection.layer_norm."),
    (r"^post_extract_proj\.", "feature_projection.projection."),
    (r"^(feature_extractor\.conv_layers\.\d+)\.0\.", r"\1.conv."),
    (r"^(feature_extractor\.conv_layers\.\d+)\.2\.(1\.)?", r"\1.layer_norm."),
    (r"^encoder\.pos_conv\.0\.weight_g$", "encoder.pos_conv_embed.conv.parametrizations.weight.original0"),
    (r"^encoder\.pos_conv\.0\.weight_v$", "encoder.pos_conv_embed.conv.parametrizations.weight.original1"),
    (r"^encoder\.pos_conv\.0\.", "encoder.pos_conv_embed.conv."),
    (r"\.self_attn_layer_norm\.", ".layer_norm."),
    (r"\.self_attn\.relative_attention_bias\.", ".attention.rel_attn_embed."),
    (r"\.self_attn\.grep_linear\.", ".attention.gru_rel_pos_linear."),
    (r"\.self_attn\.grep_a$", ".attention.gru_rel_pos_const"),
    (r"\.self_attn\.", ".attention."),
    (r"\.fc1\.", ".feed_forward.intermediate_dense."),
    (r"\.fc2\.", ".feed_forward.output_dense."),
)
POSITIONS = "encoder.layers.0.self_attn.relative_attention_bias.weight"
"""The tensor that WavLM has and wav2vec 2.0 has not: [buckets, heads]."""
HEAD = 64
"""Width of an attention head of wav2vec 2.0, in all of its sizes."""


def wave_encoder(tensors: Mapping[str, Tensor], where: str) -> nn.Module:
    """The WavLMModel or Wav2Vec2Model whose weights are `tensors`, in evaluation mode; what has no place in it (the
    mask's embedding, heads of the pretraining) is left out.

    Sizes are those of the tensors. Models with layer norms in their convolutions are taken to normalise first in their
    transformer layers too, as the published large ones do. Raises ConfigError where tensors are missing.
    """
    import torch
    from transformers import Wav2Vec2Model, WavLMModel

    try:
        settings = _settings(tensors)
    except KeyError as error:
        raise ConfigError(f"{where}: the tensor {error.args[0]} is missing, which fairseq's encoders have.") from None
    kind: Any = WavLMModel if POSITIONS in tensors else Wav2Vec2Model
    with torch.device("meta"):
        model = kind(kind.config_class(**settings))
    state = {_rename(name): tensor for name, tensor in tensors.items()}
    fits = {n: state[n] for n, t in model.state_dict().items() if n in state and state[n].shape == t.shape}
    if missing := sorted(set(model.state_dict()) - set(fits)):
        raise ConfigError(f"{where}: {len(missing)} tensors are missing or of another shape, such as {missing[0]}.")
    model.load_state_dict(fits, assign=True)
    return model.eval()  # type: ignore[no-any-return]


def _settings(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Keys of transformers' config."""
    convolutions = [
        tensors[f"feature_extractor.conv_layers.{i}.0.weight"].shape
        for i in range(sum(bool(re.fullmatch(r"feature_extractor\.conv_layers\.\d+\.0\.weight", n)) for n in tensors))
    ]
    hidden = len(tensors["post_extract_proj.weight"])
    _, group, width = tensors["encoder.pos_conv.0.weight_v"].shape
    large = "feature_extractor.conv_layers.0.2.1.weight" in tensors
    return {
        "hidden_size": hidden,
        "num_hidden_layers": sum(n.endswith(".fc1.weight") for n in tensors),
        "num_attention_heads": tensors[POSITIONS].shape[1] if POSITIONS in tensors else hidden // HEAD,
        "num_buckets": len(tensors[POSITIONS]) if POSITIONS in tensors else 320,
        "intermediate_size": len(tensors["encoder.layers.0.fc1.weight"]),
        "conv_dim": [shape[0] for shape in convolutions],
        "conv_kernel": [shape[2] for shape in convolutions],
        "conv_stride": [5] + [2] * (len(convolutions) - 1),
        "conv_bias": "feature_extractor.conv_layers.0.0.bias" in tensors,
        "num_conv_pos_embeddings": width,
        "num_conv_pos_embedding_groups": hidden // group,
        "feat_extract_norm": "layer" if large else "group",
        "do_stable_layer_norm": large,
        "mask_time_prob": 0.0,
    }


def _rename(name: str) -> str:
    for pattern, replacement in RENAMES:
        if re.search(pattern, name):
            return re.sub(pattern, replacement, name)
    return name
