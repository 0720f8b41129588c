"""Whisper in the format of CTranslate2 (the engine below faster-whisper), written by CTranslate2's own converter."""

import importlib.util
import json
import tempfile
from pathlib import Path

from stentor.errors import ConfigError
from stentor.models.base import Bundle

KINDS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")
"""Weight types of CTranslate2."""


def save(bundle: Bundle, folder: Path, quantization: str | None) -> None:
    """Write model.bin, config.json, vocabulary.json, and tokenizer.json and preprocessor_config.json for
    faster-whisper, into a folder that is there; adapters are folded in.

    `quantization`: one of `KINDS`, None for float32. Raises ConfigError without CTranslate2 and for unknown kinds.
    """
    from transformers import WhisperFeatureExtractor

    need()
    if quantization is not None and quantization not in KINDS:
        raise ConfigError(f"--quantization {quantization} is not known; CTranslate2 has {', '.join(KINDS)}.")
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        bundle.family.save_merged(bundle, Path(scratch))
        converter = TransformersConverter(scratch)
        # It empties the folder first, so what else belongs there comes after.
        converter.convert(str(folder), quantization=quantization or "float32", force=True)
    bundle.processor.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    extractor = WhisperFeatureExtractor(feature_size=bundle.processor.mels)
    (folder / "preprocessor_config.json").write_text(extractor.to_json_string(), encoding="utf-8")
    config = folder / "config.json"
    facts = json.loads(config.read_text(encoding="utf-8"))
    # The converter knows them only from newer generation configs.
    facts["lang_ids"] = sorted(bundle.processor.languages.values())
    config.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def need() -> None:
    """Raise ConfigError when CTranslate2 is not installed."""
    if importlib.util.find_spec("ctranslate2") is None:
        raise ConfigError("--format ct2 needs the package ctranslate2: pip install 'stentor[ct2]'.")
