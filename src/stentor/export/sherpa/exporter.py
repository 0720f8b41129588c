"""Shared by the exports for sherpa-onnx."""

from typing import Any

from stentor.export.onnx.exporter import GraphExporter

PROGRAM = """\
sherpa-onnx 2.0.1 and newer runs these graphs, on phones, Raspberry Pi and servers and in a dozen languages:

```python
import numpy, sherpa_onnx, soundfile  # pip install numpy sherpa-onnx soundfile

{make}
audio, rate = soundfile.read("speech.wav", dtype="float32")  # mono
{more}stream = recognizer.create_stream()
stream.accept_waveform(rate, audio)
recognizer.decode_stream(stream)
print(stream.result.text, stream.result.tokens, stream.result.timestamps)
```

{remarks}"""


def usage_of(make: str, remarks: str, more: str = "") -> str:
    """`Exporter.usage` of an OfflineRecognizer. `make`: lines that make it; `more`: lines on `audio` and `rate`."""
    return PROGRAM.replace("{make}", make).replace("{remarks}", remarks).replace("{more}", more)


class SherpaExporter(GraphExporter):
    """Graphs that sherpa-onnx reads."""

    runtime = "sherpa-onnx"
    extra = "sherpa"


def result_of(recognizer: Any, audio: Any, **options: str) -> Any:
    """Result of an OfflineRecognizer for a clip, float32 [samples] at 16 kHz, with options of its stream."""
    stream = recognizer.create_stream()
    for name, value in options.items():
        stream.set_option(name, value)
    stream.accept_waveform(16000, audio)
    recognizer.decode_stream(stream)
    return stream.result
