"""Code in a model's folder (`auto_map`) is never run, and nobody is asked whether it may be."""

import ast
import builtins
import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
)

from stentor.errors import ConfigError
from stentor.models.base import Family, TaskRequirements
from tiny_configs import WAVE, WHISPER

SOURCE = Path(__file__).parents[2] / "src" / "stentor"
CODE = {
    kind: f"mine.{kind}"
    for kind in (
        "AutoConfig",
        "AutoModel",
        "AutoModelForCTC",
        "AutoModelForCausalLM",
        "AutoModelForSpeechSeq2Seq",
        "AutoModelForAudioXVector",
        "AutoProcessor",
        "AutoFeatureExtractor",
    )
}
FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "tokenizer_config.json")


def calls(path: Path) -> list[ast.Call]:
    """Where a file loads something of transformers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return [
        call
        for call in methods
        if call.func.attr == "from_pretrained"
        or (call.func.attr == "from_config" and ast.unparse(call.func.value).startswith("Auto"))
    ]


def test_every_call_says_no():
    counted = 0
    for path in sorted(SOURCE.rglob("*.py")):
        for call in calls(path):
            counted += 1
            trust = [k.value for k in call.keywords if k.arg == "trust_remote_code"]
            assert [ast.unparse(t) for t in trust] == ["False"], f"{path}:{call.lineno}: {ast.unparse(call)}"
    assert counted > 40
    for path in SOURCE.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".yaml", ".md"):
            assert "trust_remote_code=True" not in path.read_text(encoding="utf-8"), path


def poison(folder: Path) -> Path:
    """Adds code to a folder which would leave a file behind, and to its configs that it is to be used."""
    ran = folder.parent / f"{folder.name}-ran"
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w').write('ran')\n")
    for name in FILES:
        path = folder / name
        known = json.loads(path.read_text()) if path.exists() else {"model_type": "mine"}
        code = {"AutoTokenizer": [None, "mine.AutoTokenizer"]} if "tokenizer" in name else CODE
        path.write_text(json.dumps(known | {"auto_map": code}))
    return ran


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch):
    asked = []  # an error here would be caught by transformers
    monkeypatch.setattr(builtins, "input", lambda *_: asked.append(1) or "y")
    yield
    assert not asked, "somebody was asked whether code may be run"


LLM = {"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
LLM |= {"num_attention_heads": 2, "num_key_value_heads": 2}
SECTIONS = {
    "encoder": {"type": "speech_llm", "encoder": {"from": "."}, "llm": {"config": LLM}, "tokenizer": "characters"},
    "llm": {"type": "speech_llm", "encoder": {"config": {"model_type": "whisper", **WHISPER}}, "llm": {"from": "."}},
    "ctc": {"type": "ctc", "from": "."},
    "whisper": {"type": "seq2seq", "from": "."},
    "audio_llm": {"type": "audio_llm", "from": "."},
    "omnivoice": {"type": "omnivoice", "llm": {"from": "."}},
    "ssl": {"type": "transformer", "ssl": {"from": "."}},
}


@pytest.mark.parametrize("name", SECTIONS)
def test_code_of_a_base_model_is_refused(name, tmp_path, monkeypatch):
    ran = poison(tmp_path / "base")
    monkeypatch.chdir(tmp_path / "base")
    family = Family.model_validate(SECTIONS[name])
    terms = {"ctc": ("ctc",), "ssl": ("activity",), "omnivoice": ("codes",)}.get(name, ("text",))
    with pytest.raises(ConfigError, match="is code of its own, which is never run"):
        family.build(TaskRequirements("transcribe", terms, lambda: ["one two"], classes=2, scores=("logits",)))
    assert not ran.exists()


def test_a_known_kind_with_code_is_read_without_it(tmp_path):
    """transformers would ask: its own class is there, and the folder's as well."""
    letters = {letter: i for i, letter in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )
    wave, llm = tmp_path / "wave", tmp_path / "llm"
    Wav2Vec2ForCTC(Wav2Vec2Config(**WAVE, vocab_size=len(letters))).save_pretrained(wave)
    Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(wave)
    Qwen2ForCausalLM(Qwen2Config(**LLM, vocab_size=len(letters))).save_pretrained(llm)
    for folder in (wave, llm):
        tokenizer.save_pretrained(folder)
    ran = [poison(folder) for folder in (wave, llm)]

    from stentor.inference.align.ctc import TransformersCTC

    TransformersCTC(wave, torch.device("cpu"))
    section = {"type": "speech_llm", "encoder": {"from": str(wave)}, "llm": {"from": str(llm)}}
    bundle = Family.model_validate(section).build(TaskRequirements("transcribe", ("text",), lambda: ["a b"]))
    assert bundle.processor.eos_id == 2 and not any(path.exists() for path in ran)
