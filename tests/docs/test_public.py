"""The public names are these, and examples and docs/extend.md use no others."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stentor
import stentor.extend

ROOT = Path(__file__).parents[2]
API = """
    AudioError ConfigError DataError DecodingOptions Diarization Model OnlineDiarizer Speaker SpeakerStream Speech
    StentorError Stream Transcriber Transcript Utterance Voice __version__ load
"""
EXTEND = """
    AudioCodec AudioError Batch Bundle CTCAlphabet CTCLoss Callback Capabilities ChatProcessor Choice Codec ConfigError
    CrossEntropy DataError Example Family FrameLabeler FrameOutput GenerationOutput HOP Labels Limit LoadedEvaluator
    Loss Prediction Processor Recognizer RecordError Reject SHORTEST Score Section Segment SequenceLoss SetStage Source
    Speaker SpecAugment SpeechEvaluator Stage StentorError Task TaskRequirements Trainer Transcribe UnusableRecord
    WINDOW WhisperMel at_peak concurrent_segments ctc_frames ctc_log_probs cut_from_record is_sharded load_audio
    batches mask_features open_trainer pad_shortest take_step text_log_probs
"""


@pytest.mark.parametrize(("module", "names"), [(stentor, API), (stentor.extend, EXTEND)], ids=["stentor", "extend"])
def test_public_names(module, names):
    """A name that goes is retired first, as CONTRIBUTING.md says."""
    assert sorted(module.__all__) == sorted(names.split())
    for name in names.split():
        getattr(module, name)
    for name, place in module.MODULES.items():
        assert getattr(module, name) is vars(importlib.import_module(place))[name]
    with pytest.raises(AttributeError, match="has no attribute 'Modell'"):
        module.Modell  # noqa: B018


@pytest.mark.parametrize("module", [stentor, stentor.extend], ids=lambda module: module.__name__)
def test_types_are_those_of_the_names(module):
    """What type checkers read under `if TYPE_CHECKING:` is what is imported on first use."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    assert {alias.name: node.module for node in block.body for alias in node.names} == module.MODULES


def test_they_are_light():
    heavy = "{'torch', 'numpy', 'lhotse', 'transformers'}"
    code = f"import sys, stentor, stentor.extend; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def python_of_users() -> dict[str, str]:
    """Texts of the examples, and of the Python on the pages about plug-ins."""
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.glob("examples/**/*.py")}
    for page in ("extend", "corpus"):
        blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```", (ROOT / f"docs/{page}.md").read_text("utf-8"), re.M | re.S)
        texts[f"docs/{page}.md"] = "\n".join(blocks)
    return texts


@pytest.mark.parametrize("name", python_of_users())
def test_examples_import_public_names_alone(name):
    imported = set()
    for node in ast.walk(ast.parse(python_of_users()[name])):
        if isinstance(node, ast.Import):
            imported |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {(node.module, alias.name) for alias in node.names}
    ours = {(module, imported_name) for module, imported_name in imported if module.partition(".")[0] == "stentor"}
    public = {"stentor": {"", *API.split()}, "stentor.extend": {"", *EXTEND.split()}}
    assert ours and all(imported_name in public.get(module, ()) for module, imported_name in ours)
