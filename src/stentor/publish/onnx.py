"""Usage section of a model card for an ONNX export."""

from pathlib import Path

TITLE = "## ONNX"
TEXT = """\
{title}

These are ONNX graphs for onnxruntime; weights and activations are float32. Checked when they were written, against the
same model in torch: {checked}.

```python
import stentor  # pip install "stentor[onnx]"
print(stentor.load("FOLDER").transcribe("speech.wav").text)
```

| graph | does |
|---|---|
{graphs}

`onnx_config.json` names their outputs and holds what a runner of its own needs: frame rate, size of the cache of keys
and values, end token. `stentor/models/speech_llm/onnx_model.py` is such a runner.
"""
GRAPHS = {
    "encoder": "features and their length to encoder frames and to the language model's audio positions",
    "ctc": "encoder frames to log-probabilities of the CTC classes",
    "llm": "tokens, audio positions and the cache to logits, states and the longer cache",
    "aligner": "features, frames and states of a text to scores of each word's start and end",
}


def add_usage(folder: Path, checked: str) -> None:
    """Add the section on ONNX to README.md of a folder with graphs; a folder without gets a README.md of that alone."""
    path = folder / "README.md"
    before = path.read_text(encoding="utf-8").split(f"\n{TITLE}\n")[0].rstrip() + "\n\n" if path.exists() else ""
    rows = "\n".join(
        f"| `{name}.onnx` | {does} |" for name, does in GRAPHS.items() if (folder / f"{name}.onnx").exists()
    )
    path.write_text(before + TEXT.format(title=TITLE, checked=checked, graphs=rows), encoding="utf-8")
