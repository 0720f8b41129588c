"""Whisper in the format of CTranslate2 (the engine below faster-whisper), written by CTranslate2's own converter."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.batch import Example
from stentor.export.exporter import Converter
from stentor.export.whisper import frames_of, not_whisper, pieces_of, prompt_of, with_times, words_of
from stentor.inference.align.whisper import FRAME, alignment_heads
from stentor.inference.model import Model
from stentor.models.base import SETTINGS, Bundle
from stentor.models.pretrained.weights import read_json, write_json
from stentor.models.seq2seq.build import builder

UNUSED = "<|startoflm|>"
"""A token that no prompt has."""
USAGE = """\
faster-whisper and CTranslate2 run this folder:

```python
from faster_whisper import WhisperModel  # pip install faster-whisper

segments, facts = WhisperModel("{folder}", device="cpu").transcribe("speech.wav", word_timestamps=True)
print(" ".join(segment.text for segment in segments))
```

Stentor runs it too: `stentor transcribe {folder} speech.wav`.
"""


class WhisperCTranslate2(Converter):
    """model.bin, config.json, vocabulary.json, and tokenizer.json and preprocessor_config.json for faster-whisper."""

    runtime = "ctranslate2"
    extra = "ct2"
    quantizations = {
        **dict.fromkeys(("float16", "bfloat16", "int16"), 0.2),
        **dict.fromkeys(("int8", "int8_float32", "int8_float16", "int8_bfloat16"), 1.0),
    }
    usage = USAGE

    def refusal(self, bundle: Bundle) -> str | None:
        return not_whisper(bundle, "CTranslate2")

    def convert(self, model: Model, folder: Path, quantization: str | None) -> None:
        from transformers import WhisperFeatureExtractor

        bundle = model.bundle
        write_converted(bundle, folder, quantization)
        bundle.processor.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
        extractor = WhisperFeatureExtractor(feature_size=bundle.processor.mels)
        (folder / "preprocessor_config.json").write_text(extractor.to_json_string(), encoding="utf-8")
        # The converter knows them only from newer generation configs.
        facts = {"lang_ids": sorted(bundle.processor.languages.values())}
        facts |= {"alignment_heads": alignment_heads(bundle.model)}
        write_json(folder / "config.json", read_json(folder / "config.json") | facts)
        builder.save_configs(bundle, folder / SETTINGS)
        # By the empty token CTranslate2 knows a Whisper that detects languages.
        vocabulary = read_json(folder / "vocabulary.json")
        if bundle.processor.languages and "" not in vocabulary and UNUSED in vocabulary:
            vocabulary[vocabulary.index(UNUSED)] = ""
            write_json(folder / "vocabulary.json", vocabulary)

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        import ctranslate2

        processor: Any = model.bundle.processor
        whisper = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="default")
        outputs = []
        for example in examples:
            inputs = processor.collate([example], labels=False).inputs
            prompt = prompt_of(model.bundle.model, inputs)
            features = whisper.encode(ctranslate2.StorageView.from_array(inputs["features"].numpy()))
            limit = processor.max_new_tokens(len(example.audio) / processor.sample_rate)  # type: ignore[arg-type]
            # It writes at most half of `max_length` tokens, and no more than `max_length` with the prompt.
            most = max(2 * limit, len(prompt) + limit)
            [result] = whisper.generate(features, [prompt], beam_size=1, max_length=most)
            ids = [i for i in result.sequences_ids[0] if i != processor.eos_id][:limit]
            words = []
            if ids:
                # It counts frames of the features, two for one of the encoder.
                [path] = whisper.align(features, prompt[:-1], [ids], 2 * frames_of(example))
                tokens, frames = np.array(path.alignments).T
                times = (FRAME * frames[np.flatnonzero(np.diff(tokens, prepend=-1))]).tolist()
                words = words_of(pieces_of(processor, ids), times[:-1], times[1:], example.language)
            outputs.append({"text": processor.decode(ids).strip(), "words": words})
        return outputs

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return with_times(model, examples)


def write_converted(bundle: Bundle, folder: Path, quantization: str | None) -> None:
    """Let CTranslate2's converter write the folder, which it empties first, and add an empty folder for what Stentor
    needs to run it."""
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        bundle.family.save_merged(bundle, Path(scratch))
        TransformersConverter(scratch).convert(str(folder), quantization=quantization or "float32", force=True)
    (folder / SETTINGS).mkdir()
