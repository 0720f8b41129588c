"""Usage in a model card: the library that loads an export, and examples for each task."""

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

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
PLAIN: Mapping[str, str] = yaml.safe_load(resources.files(__package__).joinpath("transformers_use.yaml").read_text())
"""Transcription of `audio` with `model` and `processor` of transformers, by the type of the model."""


def how_to_use(config: Mapping[str, Any], folder: Path) -> list[str]:
    """Paragraphs in Markdown: Stentor's Python and command line and, of a recogniser that transformers loads, code
    for it alone, with PEFT for adapters. Empty for tasks without a verb."""
    task = config["task"]["type"]
    if task not in USES:
        return []
    field = config["task"].get("instruct_from") or ""
    python, shell = (text.replace("{field}", field) for text in (NAMED_VOICES if field else USES[task]))
    imports = "import soundfile\nimport stentor\n\n" if "soundfile." in python else "import stentor\n\n"
    name = config["name"] if re.fullmatch(r"[\w.-]+", config["name"]) else "FOLDER"
    parts = ["## How to use", f"Where `{name}` is this folder, or its id on the Hub:"]
    if plain := plain_use(name, folder):
        parts += [f"With {plain[0]} alone:", f"```python\n{plain[1]}```", "With Stentor:"]
    return [
        *parts,
        f'```python\n{imports}model = stentor.load("{name}")\n{python}\n```',
        f"```bash\n{shell.format(name=name)}\n```",
    ]


def plain_use(name: str, folder: Path) -> tuple[str, str] | None:
    """Libraries and code that transcribe a file with an export of this name without Stentor; None where there is no
    such code."""
    config, adapters = (_json(folder / f"{kind}.json") for kind in ("config", "adapter_config"))
    if library(folder) == "stentor":
        return None
    if not adapters and re.search(r"ForCTC|Whisper|Moonshine", " ".join(architectures(folder))):
        return "transformers", PLAIN["pipeline"].replace("{name}", name)
    if (code := PLAIN.get(config["model_type"])) is None:
        return None
    (model,), base = architectures(folder), adapters.get("base_model_name_or_path", name)
    lines = ["import soundfile", f"from transformers import AutoProcessor, {model}"]
    loading = f'{model}.from_pretrained("{base}")'
    if adapters:
        lines.insert(0, "from peft import PeftModel")
        loading = f'PeftModel.from_pretrained({loading}, "{name}")'
    lines = [*sorted(lines), "", f'processor = AutoProcessor.from_pretrained("{name}")', f"model = {loading}.eval()"]
    lines += ['audio, rate = soundfile.read("speech.wav", dtype="float32")  # mono, at the rate of the model']
    return "transformers and PEFT" if adapters else "transformers", "\n".join(lines) + "\n" + code.replace(
        "{base}", base
    )


def library(folder: Path) -> str:
    """Library that loads an export, by its name on the Hub: `transformers` for models in its own layout, `peft` for
    adapters on such, else `stentor`."""
    import transformers

    if not any(hasattr(transformers, name) for name in architectures(folder)):
        return "stentor"
    return "peft" if (folder / "adapter_config.json").is_file() else "transformers"


def architectures(folder: Path) -> list[str]:
    """Class names of transformers in the config.json of an export; empty without one."""
    return _json(folder / "config.json").get("architectures") or []


def _json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}  # type: ignore[no-any-return]
