"""Formats of `stentor export`, and which exporter writes each for the models of a family."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from stentor.errors import ConfigError
from stentor.export.exporter import Exporter
from stentor.models.transformer.modeling import TransformerModel

if TYPE_CHECKING:
    from stentor.models.base import Bundle

FORMATS = {
    "hf": "safetensors and JSON in the Hub's layout",
    "onnx": "graphs for onnxruntime with a script that runs them",
    "sherpa": "sherpa-onnx",
    "ctranslate2": "CTranslate2 and faster-whisper",
    "ggml": "whisper.cpp",
    "gguf": "CrispASR",
    "web": "a folder with a page that runs in the browser",
}
"""Formats and what they are for."""
EXPORTERS: dict[tuple[str, str], str] = {
    ("onnx", "ctc"): "stentor.export.onnx.ctc:CTCOnnx",
    ("onnx", "speech_llm"): "stentor.export.onnx.speech_llm:SpeechLLMOnnx",
    ("onnx", "transformer"): "stentor.export.onnx.ctc:CTCOnnx",
    ("sherpa", "ctc"): "stentor.export.sherpa.ctc:CTCSherpa",
    ("sherpa", "transformer"): "stentor.export.sherpa.ctc:CTCSherpa",
    ("onnx", "omnivoice"): "stentor.export.onnx.speak:SpeakOnnx",
    ("onnx", "tts"): "stentor.export.onnx.speak:SpeakOnnx",
    ("onnx", "transducer"): "stentor.export.onnx.transducer:TransducerOnnx",
    ("sherpa", "tts"): "stentor.export.sherpa.pocket_tts:PocketTTSSherpa",
    ("sherpa", "transducer"): "stentor.export.sherpa.transducer:TransducerSherpa",
    ("onnx", "transformer.diarize"): "stentor.export.onnx.diarize:DiarizerOnnx",
    ("sherpa", "transformer.diarize"): "stentor.export.sherpa.diarize:DiarizerSherpa",
    ("ctranslate2", "seq2seq"): "stentor.export.ctranslate2:WhisperCTranslate2",
    ("onnx", "seq2seq"): "stentor.export.onnx.seq2seq:Seq2SeqOnnx",
    ("sherpa", "audio_llm"): "stentor.export.sherpa.qwen3_asr:Qwen3ASRSherpa",
    ("sherpa", "seq2seq"): "stentor.export.sherpa.seq2seq:Seq2SeqSherpa",
    ("ctranslate2", "ctc"): "stentor.export.ctranslate2_ctc:Wav2Vec2CTranslate2",
    **{("gguf", f): "stentor.export.gguf.exporter:CrispASRExporter" for f in ("ctc", "transducer", "audio_llm")},
    ("ggml", "seq2seq"): "stentor.export.ggml:WhisperGgml",
    **{("web", f): "stentor.export.web.page:WebPage" for f in ("ctc", "seq2seq", "transducer", "transformer")},
}
"""Class of the exporter by format and family; `transformer.diarize` are those of the family transformer that label
frames. A plug-in may add rows."""


def formats_of(row: str) -> list[str]:
    """Formats of the models of a family, or of those of a family that have rows of their own."""
    return [f for f in FORMATS if f == "hf" or (f, row) in EXPORTERS]


def row_of(bundle: Bundle) -> str:
    """Name of a model's rows of the table."""
    model = bundle.model
    labels = isinstance(model, TransformerModel) and model.frame_head is not None
    return bundle.family.type + ".diarize" * labels


def exporter_of(format: str, bundle: Bundle) -> Exporter:
    """The exporter of a model. Raises ConfigError, with the formats that there are, where there is none."""
    row = row_of(bundle)
    known = formats_of(row)
    reason: str | None = f"models of the family {bundle.family.type} have no such export"
    if (place := EXPORTERS.get((format, row))) is not None:
        module, name = place.split(":")
        exporter: Exporter = vars(importlib.import_module(module))[name]()
        if (reason := exporter.refusal(bundle)) is None:
            return exporter
        known.remove(format)
        reason = reason.rstrip(".")
    raise ConfigError(f"--format {format}: {reason}. Formats of this model: {', '.join(known)}.")
