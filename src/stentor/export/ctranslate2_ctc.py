"""wav2vec 2.0 with a CTC head in the format of CTranslate2, written by CTranslate2's own converter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stentor.export.ctranslate2 import write_converted
from stentor.export.exporter import Converter
from stentor.export.onnx.ctc import answer_of, outputs_with_times
from stentor.models.base import SETTINGS
from stentor.models.ctc.build import builder

if TYPE_CHECKING:
    from stentor.data.batch import Example
    from stentor.inference.model import Model
    from stentor.models.base import Bundle

USAGE = """\
CTranslate2 computes the logits; the best class of each frame, without repeats and the blank `<pad>`, is the text:

```python
import ctranslate2, json, numpy as np, soundfile  # pip install ctranslate2 soundfile

model = ctranslate2.models.Wav2Vec2("{folder}", device="cpu")
names = {i: name for name, i in json.load(open("{folder}/vocab.json", encoding="utf-8")).items()}
audio, rate = soundfile.read("speech.wav", dtype="float32")  # at 16 kHz
audio = (audio - audio.mean()) / np.sqrt(audio.var() + 1e-7)
path = np.array(model.encode(ctranslate2.StorageView.from_array(audio[None, None]), to_cpu=True))[0].argmax(-1)
classes = path[np.diff(path, prepend=-1) != 0]
print("".join(names[i] for i in classes if names[i] != "<pad>").replace("|", " "))
```

Stentor runs it too: `stentor transcribe {folder} speech.wav`.
"""
SHAPES = {"num_conv_pos_embeddings": 128, "num_conv_pos_embedding_groups": 16}
"""Sizes that CTranslate2 4.8 has in its code (src/layers/wav2vec2.cc) rather than in the file, beside the strides."""


class Wav2Vec2CTranslate2(Converter):
    """model.bin, config.json, vocabulary.json and the files of transformers' processor."""

    runtime = "ctranslate2"
    extra = "ct2"
    quantizations = {"float16": 0.2, "int16": 0.2, "int8": 1.0, "int8_float32": 1.0, "int8_float16": 1.0}
    usage = USAGE

    def refusal(self, bundle: Bundle) -> str | None:
        config = bundle.model.recogniser.config
        facts = config.to_dict()
        if config.model_type != "wav2vec2":
            return f"CTranslate2 runs CTC models of the kind wav2vec2, not {config.model_type}"
        if facts["feat_extract_norm"] != "layer" or not facts["do_stable_layer_norm"] or not facts["conv_bias"]:
            return "CTranslate2 runs wav2vec 2.0 with layer norms in all convolutions, such as wav2vec2-large and MMS"
        if facts["adapter_attn_dim"] is not None:
            return "CTranslate2 has no language adapters"
        strides = [5] + [2] * (len(config.conv_stride) - 1)
        if list(config.conv_stride) != strides or any(facts[name] != value for name, value in SHAPES.items()):
            return f"CTranslate2 runs wav2vec 2.0 with strides of {strides} and {SHAPES} only"
        return None

    def convert(self, model: Model, folder: Path, quantization: str | None) -> None:
        write_converted(model.bundle, folder, quantization)
        model.bundle.processor.save(folder)
        builder.save_configs(model.bundle, folder / SETTINGS)

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        import ctranslate2
        import numpy as np

        recogniser = ctranslate2.models.Wav2Vec2(str(folder), device="cpu", compute_type="default")
        outputs = []
        for example in examples:
            audio = model.bundle.processor.collate([example], labels=False).inputs["features"]
            logits = recogniser.encode(ctranslate2.StorageView.from_array(audio[:, None].numpy()), to_cpu=True)
            scores = torch.from_numpy(np.array(logits)).log_softmax(-1)
            outputs.append(answer_of(model, scores, torch.tensor([scores.shape[1]]), example))
        return outputs

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]] | None:
        return outputs_with_times(model, examples, room=False)
