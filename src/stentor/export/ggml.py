"""Whisper as one file in the format of whisper.cpp, which its loader (`whisper_model_load`, 1.8.5) reads:

eleven int32 behind a magic number: sizes and the type of the weights; the mel filters; the tokens of texts as bytes,
each behind its length; then tensors: number of sizes, length of the name, type, sizes from the last one on, name, data.
Tokens behind those of texts are not in the file: the loader knows them by their number.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from stentor.audio.features import mel_filters
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.exporter import Converter
from stentor.export.gguf.names import rows
from stentor.export.whisper import not_whisper, token_bytes
from stentor.inference.model import Model
from stentor.models.base import Bundle

FILE = "ggml-model.bin"
MAGIC = 0x67676D6C
VERSION = 2000
"""Added to the type of the weights in the header: version 2 of the layout of quantised blocks."""
TYPES = {None: (1, 1), "q8_0": (7, 8), "q5_0": (8, 6)}
"""Numbers of a type as that of a file (`ggml_ftype`) and as that of a tensor (`ggml_type`); None: float16, since
whisper.cpp has no convolutions in float32."""
FLOAT32 = 0
BLOCK = 32
"""Values that share a scale."""
TOKENS = {51864: (50256, 0), 51865: (50257, 99), 51866: (50257, 100)}
"""End token and number of languages by size of the vocabulary; the loader knows all other special tokens by them."""
NAMES = rows(
    """layers=blocks self_attn=attn encoder_attn=cross_attn self_attn_layer_norm=attn_ln
    encoder_attn_layer_norm=cross_attn_ln q_proj=query k_proj=key v_proj=value out_proj=out fc1=mlp.0 fc2=mlp.2
    final_layer_norm=mlp_ln embed_tokens=token_embedding"""
)
"""whisper.cpp's names of the parts of transformers' names."""
USAGE = """\
whisper.cpp runs this file, as do pywhispercpp and the programs around them:

```python
from pywhispercpp.model import Model  # pip install pywhispercpp

print("".join(s.text for s in Model("{folder}/ggml-model.bin").transcribe("speech.wav", no_timestamps=True)))
```

`whisper-cli -m {folder}/ggml-model.bin -nt speech.wav` does the same. Add `-nf` for greedy search without second
attempts, which is what was compared here. Leave `-nt` out only for models that were trained with timestamps.
"""


class WhisperGgml(Converter):
    """ggml-model.bin."""

    runtime = "pywhispercpp"
    extra = "ggml"
    precision = "float16"
    quantizations = {"q8_0": 1.0, "q5_0": 2.0}
    usage = USAGE

    def refusal(self, bundle: Bundle) -> str | None:
        if reason := not_whisper(bundle, "whisper.cpp"):
            return reason
        config, processor = bundle.model.config, bundle.processor
        eos, languages = TOKENS.get(config.vocab_size, (-1, 0))
        named = [*sorted(processor.languages.values())]  # type: ignore[attr-defined]
        plain = eos + (106 if not languages else 7 + languages)
        if (processor.eos_id, processor.plain_id) != (eos, plain) or named != [eos + 2 + i for i in range(languages)]:  # type: ignore[attr-defined]
            return "whisper.cpp knows the special tokens by their number, and this vocabulary is not that of OpenAI"
        if {config.encoder_ffn_dim, config.decoder_ffn_dim} != {4 * config.d_model}:
            return "whisper.cpp takes feed-forward layers of four times the model's width alone"
        head: Any = bundle.model.proj_out
        if not torch.equal(head.weight, bundle.model.model.decoder.embed_tokens.weight):
            return "whisper.cpp takes the embedding as output layer, and in this model they differ"
        return None

    def convert(self, model: Model, folder: Path, quantization: str | None) -> None:
        config, processor = model.bundle.model.config, model.bundle.processor
        if quantization and config.d_model % BLOCK:
            raise ConfigError(f"--quantization {quantization}: the width {config.d_model} is no multiple of {BLOCK}.")
        width, kind = config.d_model, TYPES[quantization][0]
        encoder = (config.max_source_positions, width, config.encoder_attention_heads, config.encoder_layers)
        decoder = (config.max_target_positions, width, config.decoder_attention_heads, config.decoder_layers)
        kind += VERSION * (quantization is not None)
        filters = mel_filters(config.num_mel_bins).T
        texts = token_bytes(processor.tokenizer)  # type: ignore[attr-defined]
        with (folder / FILE).open("wb") as file:
            file.write(struct.pack("<II4i4iii", MAGIC, config.vocab_size, *encoder, *decoder, len(filters), kind))
            file.write(struct.pack("<2i", *filters.shape) + np.ascontiguousarray(filters, "<f4").tobytes())
            file.write(struct.pack("<i", processor.eos_id))  # type: ignore[attr-defined]
            for token in range(processor.eos_id):  # type: ignore[attr-defined]
                text = texts.get(token, b"")
                file.write(struct.pack("<I", len(text)) + text)
            for name, array in _tensors(model.bundle.model.model.state_dict()):
                _write_tensor(file, name, array, quantization)

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        from pywhispercpp.model import Model as WhisperCpp

        processor: Any = model.bundle.processor
        recogniser: Any = model.bundle.model
        whisper: Any = WhisperCpp(
            str(folder / FILE), redirect_whispercpp_logs_to=None, context_params={"use_gpu": False}
        )
        options = {
            "no_timestamps": True,
            "temperature_inc": 0.0,
            "no_speech_thold": 1.0,
            "suppress_blank": processor.eos_id in recogniser.suppressed_first,
            "suppress_nst": processor.tokenizer.convert_tokens_to_ids("(") in recogniser.suppressed,
            "print_progress": False,
            "n_threads": torch.get_num_threads(),
        }
        outputs = []
        for example in examples:
            language = processor.code(example.language) or "auto" if processor.languages else "en"
            said = {"language": language, "translate": bool(example.extra.get("translate"))}
            segments = whisper.transcribe(example.audio, **said, **options)
            outputs.append({"text": "".join(s.text for s in segments).strip()})
        return outputs


def _tensors(state: dict[str, torch.Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    for name, tensor in state.items():
        half, *parts, kind = name.split(".")
        parts = [NAMES.get(p, p) for p in parts]
        if parts == ["layer_norm"]:
            parts = ["ln_post" if half == "encoder" else "ln"]
        if parts == ["embed_positions"]:
            parts, kind = [], "positional_embedding"
        yield ".".join([half, *parts, kind]), tensor.float().numpy()


def _write_tensor(file: BinaryIO, name: str, array: np.ndarray, quantization: str | None) -> None:
    """Matrices and convolutions in the type of the file, convolutions in float16; all others in float32."""
    if ".conv" in name and name.endswith("bias"):
        array = array[:, None]
    data, kind = np.ascontiguousarray(array, "<f4"), FLOAT32
    if array.ndim > 1 and not name.endswith(("bias", "positional_embedding")):
        if array.ndim == 3 or quantization is None:
            data, kind = data.astype("<f2"), TYPES[None][1]
        else:
            from gguf import GGMLQuantizationType, quants

            kind = TYPES[quantization][1]
            data = quants.quantize(data, GGMLQuantizationType(kind))
    encoded = name.encode()
    file.write(struct.pack("<3i", array.ndim, len(encoded), kind))
    file.write(struct.pack(f"<{array.ndim}i", *reversed(array.shape)) + encoded + data.tobytes())
