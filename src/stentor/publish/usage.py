"""Usage in a model card: the library that loads an export, and examples for each task."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

USES = {
    "transcribe": ('print(model.transcribe("speech.wav").text)', "stentor transcribe {name} speech.wav"),
    "words": (
        'for word in model.transcribe("speech.wav").words:\n    print(word["start"], word["end"], word["word"])',
        "stentor transcribe {name} speech.wav --words --format srt",
    ),
    "who_said_what": (
        'for turn in model.transcribe("meeting.wav").segments:\n'
        '    print(turn["speaker"], turn["start"], turn["text"])',
        "stentor transcribe {name} meeting.wav --format json",
    ),
    "diarize": (
        'for segment in model.diarize("meeting.wav").segments:\n'
        '    print(segment["start"], segment["end"], segment["speaker"])',
        "stentor diarize {name} meeting.wav",
    ),
    "speak": (
        'speech = model.speak("Good morning.", reference="voice.wav", reference_text="what is said in it")\n'
        'soundfile.write("out.wav", speech.audio, speech.rate)',
        'stentor speak {name} "Good morning." --reference voice.wav --reference-text "what is said in it" \\\n'
        "  --out out.wav",
    ),
}
"""Per task type the line of Python after `stentor.load`, and the command."""
NAMED_VOICES = (
    'speech = model.speak("Good morning.", instruct="a {field} of the training data")\n'
    'soundfile.write("out.wav", speech.audio, speech.rate)',
    'stentor speak {name} "Good morning." --instruct "a {field} of the training data" --out out.wav',
)
"""The same for a model whose records named their voices (`task.instruct_from`): it may never have seen a reference."""
PIPELINE = """\
```python
from transformers import pipeline

recognise = pipeline("automatic-speech-recognition", model="{name}")
print(recognise("speech.wav")["text"])  # reads files with FFmpeg
```"""
"""Usage of recognisers that transformers loads by itself."""


def how_to_use(config: Mapping[str, Any], folder: Path) -> list[str]:
    """Paragraphs in Markdown: Stentor's Python and command line and, of a recogniser in the layout of transformers (no
    adapters), its pipeline. Empty for tasks without a verb."""
    task = config["task"]["type"]
    if task not in USES:
        return []
    field = config["task"].get("instruct_from") or ""
    python, shell = (text.replace("{field}", field) for text in (NAMED_VOICES if field else USES[task]))
    imports = "import soundfile\nimport stentor\n\n" if "soundfile." in python else "import stentor\n\n"
    name = config["name"] if re.fullmatch(r"[\w.-]+", config["name"]) else "FOLDER"
    parts = ["## How to use", f"Where `{name}` is this folder, or its id on the Hub:"]
    if library(folder) == "transformers" and re.search(r"ForCTC|Whisper|Moonshine", " ".join(architectures(folder))):
        parts += ["With transformers alone:", PIPELINE.format(name=name), "With Stentor:"]
    return [
        *parts,
        f'```python\n{imports}model = stentor.load("{name}")\n{python}\n```',
        f"```bash\n{shell.format(name=name)}\n```",
    ]


def library(folder: Path) -> str:
    """Library that loads an export, by its name on the Hub: `transformers` for models in its own layout, `peft` for
    adapters on such, else `stentor`."""
    import transformers

    if not any(hasattr(transformers, name) for name in architectures(folder)):
        return "stentor"
    return "peft" if (folder / "adapter_config.json").is_file() else "transformers"


def architectures(folder: Path) -> list[str]:
    """Class names of transformers in the config.json of an export; empty without one."""
    file = folder / "config.json"
    return (json.loads(file.read_text("utf-8")).get("architectures") or []) if file.is_file() else []
