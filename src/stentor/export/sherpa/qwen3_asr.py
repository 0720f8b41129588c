"""Qwen3-ASR for sherpa-onnx 2.0.1, as `OfflineQwen3ASRModel` reads it; inputs and outputs go by their order.

conv_frontend.onnx   features [1, T, 128], log-mel as in training -> positions [1, P, width], 13 for each second
encoder.onnx         positions, mask [1, P], true where there is audio -> audio [1, P, text width]
decoder.onnx         ids [1, L], audio, ones [1, L] unused, places [L], past_key_i, past_value_i [1, all, heads, width]
                     -> logits [1, L, V], the last token's for each, key_i, value_i [1, L, heads, width] for the cache
tokenizer            vocab.json, merges.txt, and tokenizer_config.json with the special tokens
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache

from stentor.data.batch import Example
from stentor.export.onnx.trace import bias, cached_states, trace
from stentor.export.sherpa.exporter import SherpaExporter, result_of, usage_of
from stentor.export.sherpa.seq2seq import Placed
from stentor.inference.model import Model
from stentor.models.audio_llm.kinds.qwen3_asr import PIECE, Qwen3ASR
from stentor.models.base import Bundle
from stentor.models.pretrained.weights import write_json

PARTS, MELS = ("conv_frontend", "encoder", "decoder"), 128
MAKE = f"""\
files = {{n: f"{{folder}}/{{n}}.onnx" for n in {PARTS}}}
recognizer = sherpa_onnx.OfflineRecognizer.from_qwen3_asr(
    **files, tokenizer="{{folder}}/tokenizer", max_total_len=1024, max_new_tokens=256)"""
REMARKS = """\
`max_total_len` has room for 13 positions a second, for some 20 of the prompt, and for `max_new_tokens`; audio beyond it
is left out. Fill clips under half a second up with zeros. `stream.set_option("language", "English")` names the
language; without it the model does. Where it is named, sherpa-onnx writes something for silence too. No word times.
"""


class AudioTower(nn.Module):
    """Convolutions over pieces of a second; with a mask the layers, in windows of attention, and the projector."""

    def __init__(self, model: Any, window: int):
        super().__init__()
        self.tower, self.projector, self.window = model.audio_tower, model.multi_modal_projector, window

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Any:
        tower, hidden, window = self.tower, features[0], torch.arange(features.shape[1]) // self.window
        if mask is None:
            rows = torch.arange((features.shape[1] + PIECE - 1) // PIECE)[:, None] * PIECE + torch.arange(PIECE)
            hidden = F.pad(hidden, (0, 0, 0, PIECE - 1))[rows].transpose(1, 2)[:, None]
            for layer in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
                hidden = F.gelu(layer(hidden))
            hidden = tower.conv_out(hidden.permute(0, 3, 1, 2).flatten(2))
            return (hidden + tower.positional_embedding.positional_embedding[: hidden.shape[1]]).flatten(0, 1)[None]
        unseen = bias((window[:, None] == window) & mask)
        for layer in tower.layers:
            attn, normal, size = layer.self_attn, layer.self_attn_layer_norm(hidden), (layer.self_attn.num_heads, -1)
            projections = (attn.q_proj, attn.k_proj, attn.v_proj)
            q, k, v = (project(normal).unflatten(1, size).transpose(0, 1)[None] for project in projections)
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=unseen)
            hidden = hidden + attn.out_proj(heads[0].transpose(0, 1).flatten(1))
            hidden = hidden + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden))))
        return self.projector(tower.ln_post(hidden))[None]


class TextDecoder(nn.Module):
    """The language model with a cache of a fixed length."""

    def __init__(self, model: Any):
        super().__init__()
        self.llm, self.head, self.audio_id = model.language_model, model.lm_head, model.config.audio_token_id

    def forward(self, ids: Tensor, audio: Tensor, ones: Tensor, places: Tensor, past: list[Tensor]) -> Any:
        is_audio = (ids[0] == self.audio_id) & (places[0] == 0)
        embeds = self.llm.get_input_embeddings()(ids[0].masked_fill(is_audio, 0))
        embeds = torch.where(is_audio[:, None], audio[0][(is_audio.cumsum(0) - 1).clamp(min=0)], embeds)[None]
        cache: Any = DynamicCache()
        cache.layers = [Placed(k.transpose(1, 2), v.transpose(1, 2), places) for k, v in zip(past[::2], past[1::2])]
        seen = (torch.arange(past[0].shape[1]) <= places[:, None])[None, None]
        states = cached_states(self.llm, embeds, seen, places[None], cache)
        new = [t.index_select(2, places).transpose(1, 2) for layer in cache.layers for t in layer.both]
        return self.head(states[:, -1:]).expand(-1, ids.shape[1], -1), *new


class Qwen3ASRSherpa(SherpaExporter):
    """Three graphs and the tokenizer."""

    usage = usage_of(MAKE, REMARKS)

    def refusal(self, bundle: Bundle) -> str | None:
        known = isinstance(bundle.processor, Qwen3ASR) and bundle.processor.mel.n_mels == MELS
        return None if known else f"of audio language models sherpa-onnx reads Qwen3-ASR with {MELS} mel bands alone"

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle: Any = model.bundle
        text, width = bundle.model.config.text_config, bundle.model.config.audio_config.d_model
        new = [f"{kind}_{i}" for i in range(text.num_hidden_layers) for kind in ("key", "value")]
        ones, cache = torch.ones(1, 9, dtype=torch.long), (1, 40, text.num_key_value_heads, text.head_dim)
        tower_inputs = {"features": torch.randn(1, 104, width), "mask": torch.ones(1, 104, dtype=torch.bool)}
        decoder_inputs: Any = {"ids": ones - 1, "audio": torch.randn(1, 6, text.hidden_size), "ones": ones}
        decoder_inputs |= {"places": torch.arange(9), "past": [torch.zeros(cache) for _ in new]}
        axes = dict.fromkeys([*tower_inputs, *decoder_inputs], (1,)) | {"places": (0,), "past": [(1,)] * len(new)}
        tower = AudioTower(bundle.model, bundle.processor.window)
        parts: list[tuple[nn.Module, dict[str, Any], list[str], str]] = [
            (tower, {"features": torch.randn(1, 730, MELS)}, ["positions"], "audio encoder"),
            (tower, tower_inputs, ["audio"], "audio encoder"),
            (TextDecoder(bundle.model), decoder_inputs, ["logits", *new], "language model"),
        ]
        for name, (graph, inputs, outputs, noun) in zip(PARTS, parts):
            names = [*(n for n in inputs if n != "past"), *(f"past_{n}" for n in outputs[1:])]
            trace(graph, inputs, {n: axes[n] for n in inputs}, outputs, folder / f"{name}.onnx", noun, names)
        (tokens := folder / "tokenizer").mkdir()
        bundle.processor.tokenizer.backend_tokenizer.model.save(str(tokens))
        added = {str(i): {"content": token} for token, i in bundle.processor.tokenizer.get_added_vocab().items()}
        write_json(tokens / "tokenizer_config.json", {"added_tokens_decoder": added})

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        from sherpa_onnx import OfflineRecognizer

        processor: Any = model.bundle.processor
        clips = [torch.as_tensor(e.audio) for e in examples]
        limits = [processor.max_new_tokens(len(clip) / processor.sample_rate) for clip in clips]
        room = max(len(processor.prompt_of(e, False)) + limit for e, limit in zip(examples, limits))
        files = {part: str(folder / f"{part}.onnx") for part in PARTS} | {"tokenizer": str(folder / "tokenizer")}
        recognizer, outputs = OfflineRecognizer.from_qwen3_asr(**files, max_total_len=room), []
        for e, clip, limit in zip(examples, clips, limits):
            audio = F.pad(clip, (0, max(0, processor.hf.feature_extractor.min_length - len(clip)))).numpy()
            options = {"language": processor.name_of(e.language) or "", "hotwords": e.context or ""}
            outputs.append({"text": result_of(recognizer, audio, max_new_tokens=str(limit), **options).text.strip()})
        return outputs
