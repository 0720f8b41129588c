"""Names of tensors in GGUF files of CrispASR 0.8.45, by kind of model, as its backends (src/*.cpp) look them up."""

from __future__ import annotations

import re
from collections.abc import Mapping

Names = Mapping[str, str | None]
"""Name in the file by transformers' name, both with or without the last part (`weight`, `bias`, ...); None: left out.
`*` is the number of a layer."""
LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def rows(pairs: str, ours: str = "", theirs: str = "") -> dict[str, str]:
    """Rows from `transformers=gguf` pairs, each name behind its beginning."""
    return {ours + a: theirs + b for a, b in (pair.split("=") for pair in pairs.split())}


WAVE: Names = {
    **rows(
        """feature_extractor.conv_layers.*.conv=cnn.*.conv feature_extractor.conv_layers.*.layer_norm=cnn.*.norm
        feature_projection.layer_norm=feat_proj.ln feature_projection.projection=feat_proj
        encoder.pos_conv_embed.conv=pos_conv encoder.pos_conv_embed.layers.*.conv=pos_conv.* encoder.layer_norm=enc.ln
        lm_head=lm_head"""
    ),
    **rows(
        """attention.q_proj=attn.q attention.k_proj=attn.k attention.v_proj=attn.v attention.out_proj=attn.out
        layer_norm=ln1 feed_forward.intermediate_dense=ffn.fc1 feed_forward.output_dense=ffn.fc2
        final_layer_norm=ln2""",
        "encoder.layers.*.",
        "enc.*.",
    ),
    "masked_spec_embed": None,
}
"""wav2vec2-ggml.cpp."""
CONFORMER: Names = {
    **rows("layers.*=conv.* linear=out", "encoder.subsampling.", "encoder.pre."),
    **rows(
        """norm_feed_forward1=norm_ff1 feed_forward1.linear1=ff1.linear1 feed_forward1.linear2=ff1.linear2
        norm_self_att=norm_attn self_attn.q_proj=attn.q self_attn.k_proj=attn.k self_attn.v_proj=attn.v
        self_attn.o_proj=attn.out self_attn.relative_k_proj=attn.pos self_attn.bias_u=attn.pos_bias_u
        self_attn.bias_v=attn.pos_bias_v norm_conv=norm_conv conv.pointwise_conv1=conv.pw1 conv.depthwise_conv=conv.dw
        conv.norm=conv.bn conv.pointwise_conv2=conv.pw2 norm_feed_forward2=norm_ff2 feed_forward2.linear1=ff2.linear1
        feed_forward2.linear2=ff2.linear2 norm_out=norm_out""",
        "encoder.layers.*.",
        "encoder.layers.*.",
    ),
    "encoder.layers.*.conv.norm.num_batches_tracked": None,
    "ctc_head": "ctc",
}
"""The encoder of parakeet.cpp (core/fastconformer.h), with a CTC head."""
TRANSDUCER: Names = {
    **CONFORMER,
    **{
        f"decoder.lstm.{ours}_{part}_l{i}": f"decoder.lstm.{i}.{ours[0]}_{part}"
        for i in range(2)
        for ours in ("weight", "bias")
        for part in ("ih", "hh")
    },
    **rows(
        "decoder.embedding=decoder.embed decoder.decoder_projector=joint.pred encoder_projector=joint.enc "
        "joint.head=joint.out"
    ),
}
"""parakeet.cpp."""
NEMOTRON: Names = {
    **TRANSDUCER,
    **rows(
        """conv_in=0 layers.0.depthwise_conv=2 layers.0.pointwise_conv=3 layers.1.depthwise_conv=5
        layers.1.pointwise_conv=6""",
        "encoder.subsampling.",
        "encoder.pre.conv.",
    ),
    "encoder.layers.*.conv.norm": "encoder.layers.*.conv.ln",
}
"""nemotron.cpp: convolutions have names of their own, and a layer norm."""
LANGUAGE_MODEL: Names = {
    **rows("language_model.embed_tokens=token_embd language_model.norm=output_norm lm_head=output"),
    **rows(
        """input_layernorm=attn_norm self_attn.q_proj=attn_q self_attn.k_proj=attn_k self_attn.v_proj=attn_v
        self_attn.o_proj=attn_output self_attn.q_norm=attn_q_norm self_attn.k_norm=attn_k_norm
        post_attention_layernorm=ffn_norm mlp.gate_proj=ffn_gate mlp.up_proj=ffn_up mlp.down_proj=ffn_down""",
        "language_model.layers.*.",
        "blk.*.",
    ),
    **rows(
        """self_attn_layer_norm=attn_norm self_attn.q_proj=attn_q self_attn.k_proj=attn_k self_attn.v_proj=attn_v
        self_attn.out_proj=attn_out final_layer_norm=ffn_norm fc1=ffn_up fc2=ffn_down""",
        "audio_tower.layers.*.",
        "audio.blk.*.",
    ),
}
"""Language models, and towers with Whisper's layers, of several backends."""
QWEN3_ASR: Names = {
    **LANGUAGE_MODEL,
    **rows("conv2d1=conv.1 conv2d2=conv.2 conv2d3=conv.3 conv_out=conv_out ln_post=ln_post", "audio_tower.", "audio."),
    **rows("linear_1=proj1 linear_2=proj2", "multi_modal_projector.", "audio."),
}
"""qwen3_asr.cpp."""
VOXTRAL: Names = {
    **LANGUAGE_MODEL,
    **rows(
        "conv1=conv.1 conv2=conv.2 embed_positions.weight=embed_positions layer_norm=ln_post", "audio_tower.", "audio."
    ),
    **rows("linear_1=proj1 linear_2=proj2", "multi_modal_projector."),
}
"""voxtral.cpp."""
GRANITE: Names = {
    **LANGUAGE_MODEL,
    **rows("input_linear=input out=ctc_out out_mid=ctc_mid", "encoder.", "enc."),
    **rows(
        """attn.pre_norm=attn_norm attn.to_q=attn_q attn.to_kv=attn_kv attn.to_out=attn_out
        attn.rel_pos_emb=attn_rel_pos conv.norm=conv_norm conv.up_conv=conv_up conv.depth_conv.conv=conv_dw
        conv.batch_norm=conv_bn conv.down_conv=conv_down ff1.pre_norm=ff1_norm ff1.up_proj=ff1_up
        ff1.down_proj=ff1_down ff2.pre_norm=ff2_norm ff2.up_proj=ff2_up ff2.down_proj=ff2_down post_norm=post_norm""",
        "encoder.layers.*.",
        "enc.blk.*.",
    ),
    "encoder.layers.*.conv.batch_norm.num_batches_tracked": None,
    **rows("query=query linear=linear qformer.layernorm=ln", "projector.", "proj."),
    **rows(
        """attention.attention.query=sa_query attention.attention.key=sa_key attention.attention.value=sa_value
        attention.output.dense=sa_out attention.output.LayerNorm=sa_norm crossattention.attention.query=ca_query
        crossattention.attention.key=ca_key crossattention.attention.value=ca_value
        crossattention.output.dense=ca_out crossattention.output.LayerNorm=ca_norm intermediate_query.dense=ffn_up
        output_query.dense=ffn_down output_query.LayerNorm=ffn_norm""",
        "projector.qformer.encoder.layer.*.",
        "proj.blk.*.",
    ),
}
"""granite_speech.cpp."""


def gguf_name(name: str, table: Names) -> str | None:
    """Name of a tensor in the file, None for one that is left out. Raises KeyError for a tensor without a place."""
    layer = LAYER.search(f"{name}.")
    starred = name if layer is None else f"{name[: layer.start()]}*{name[layer.end() :]}"
    for known in (name, starred):
        module, _, last = known.rpartition(".")
        for key, end in ((known, ""), (module, f".{last}")):
            if key in table:
                place = table[key]
                return None if place is None else place.replace("*", layer[0] if layer else "") + end
    raise KeyError(name)
