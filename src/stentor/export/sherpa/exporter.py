"""Shared by the exports for sherpa-onnx."""

from typing import Any

from stentor.export.onnx.exporter import GraphExporter


class SherpaExporter(GraphExporter):
    """Graphs that sherpa-onnx reads."""

    runtime = "sherpa-onnx"
    extra = "sherpa"


def heard(recognizer: Any, audio: Any) -> Any:
    """Result of an OfflineRecognizer for a clip, float32 [samples] at 16 kHz."""
    stream = recognizer.create_stream()
    stream.accept_waveform(16000, audio)
    recognizer.decode_stream(stream)
    return stream.result
