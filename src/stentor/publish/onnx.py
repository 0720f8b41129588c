"""Usage section of a model card for an ONNX export, and the program beside the graphs that runs them."""

import shutil
from pathlib import Path

PROGRAM = Path(__file__).parent / "templates" / "onnx" / "transcribe.py"
TITLE = "## ONNX"
TEXT = """\
{title}

These are ONNX graphs for onnxruntime; {numbers}. Checked when they were written, against the same model in torch:
{checked}.

`transcribe.py` runs them without Stentor and torch: features, prompt, decoding loop and windows for long recordings in
under 200 lines to read and to take from.

```bash
pip install numpy onnxruntime tokenizers soundfile
python transcribe.py speech.wav
```

Stentor runs them too, with word times, subtitles, beams and second attempts:

```python
import stentor  # pip install "stentor[onnx]"
print(stentor.load("FOLDER").transcribe("speech.wav").text)
```

| graph | does |
|---|---|
{graphs}

`onnx_config.json` names their outputs and holds frame rate, size of the cache of keys and values, tokens of the prompt
and end token; `preprocessor_config.json` the features and the words of the prompt.
"""
NUMBERS = {
    None: "weights and activations are float32",
    "int8": "weights are in 8 bits and multiplied in integers, the rest is float32",
    "float16": "weights are stored in float16, activations are float32",
}
"""Per quantization what the numbers are."""
GRAPHS = {
    "encoder": "features and their length to encoder frames and to the language model's audio positions",
    "ctc": "encoder frames to log-probabilities of the CTC classes",
    "llm": "tokens, audio positions and the cache to logits, states and the longer cache",
    "aligner": "features, frames and states of a text to scores of each word's start and end",
}


def add_usage(folder: Path, checked: str, quantization: str | None = None) -> None:
    """Add the program to a folder with graphs, and the section on ONNX to its README.md; without one it gets a file of
    that alone."""
    shutil.copyfile(PROGRAM, folder / PROGRAM.name)
    path = folder / "README.md"
    before = path.read_text(encoding="utf-8").split(f"\n{TITLE}\n")[0].rstrip() + "\n\n" if path.exists() else ""
    rows = "\n".join(
        f"| `{name}.onnx` | {does} |" for name, does in GRAPHS.items() if (folder / f"{name}.onnx").exists()
    )
    text = TEXT.format(title=TITLE, numbers=NUMBERS[quantization], checked=checked, graphs=rows)
    path.write_text(before + text, encoding="utf-8")
