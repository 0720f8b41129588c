"""Recognisers of sherpa-onnx: those that published evaluations use and transformers does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from stentor.errors import ConfigError, require
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator

if TYPE_CHECKING:
    import numpy as np

RATE = 16000


class Sherpa(SpeechEvaluator):
    """Recogniser in ONNX, run by sherpa-onnx (`pip install 'stentor[judges]'`): Paraformer for Chinese (Gao et al.
    2022, arXiv:2206.08317), as in Seed-TTS-eval, or Omnilingual ASR's CTC models."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["sherpa_onnx"] = "sherpa_onnx"
    source: str = Field(alias="from")
    """Folder or Hub id with `model.onnx` (or else one other .onnx file) and `tokens.txt`, such as
    csukuangfj/sherpa-onnx-paraformer-zh-2023-03-28."""
    model: Literal["paraformer", "omnilingual"] = "paraformer"
    """Kind of the network."""
    revision: str | None = None
    """Branch, tag or commit of the Hub id. Null: the newest."""

    gives: ClassVar = "text"

    def load(self, device: str = "cpu") -> LoadedEvaluator:
        require("judges", "The recogniser sherpa_onnx")
        import torch
        from sherpa_onnx import OfflineRecognizer

        from stentor.models.pretrained.published_weights import snapshot

        folder = snapshot(self, self.type, ["model*.onnx", "tokens.txt"])
        networks = sorted(folder.glob("*.onnx"), key=lambda file: (file.name != "model.onnx", file.name))
        if not networks or not (folder / "tokens.txt").is_file():
            raise ConfigError(
                f"sherpa_onnx.from: {folder} does not hold both a file .onnx and tokens.txt: get it again."
            )
        provider, threads = "cuda" if device.startswith("cuda") else "cpu", torch.get_num_threads()
        settings: Any = {"tokens": str(folder / "tokens.txt"), "provider": provider, "num_threads": threads}
        if self.model == "paraformer":
            recognizer = OfflineRecognizer.from_paraformer(paraformer=str(networks[0]), **settings)
        else:
            recognizer = OfflineRecognizer.from_omnilingual_asr_ctc(model=str(networks[0]), **settings)

        def transcribe(audios: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[str]:
            texts = []
            for audio in audios:
                stream = recognizer.create_stream()
                stream.accept_waveform(RATE, audio)
                recognizer.decode_stream(stream)
                texts.append(stream.result.text.strip())
            return texts

        return LoadedEvaluator(RATE, transcribe)
