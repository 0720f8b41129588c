"""CTC models for sherpa-onnx 2.0.1: model.onnx and tokens.txt for an OfflineRecognizer.

It has a class for each kind of features. Its code (csrc/offline-*-ctc-model.cc, offline-recognizer-ctc-impl.h) says
what each gives the graph, by the order of inputs, and how long a frame of the answer is taken to be:

omnilingual_asr_ctc   audio [1, samples] with mean 0 and variance 1 -> logprobs [1, frames, classes], frames of 20 ms;
                      for models of raw audio, and of log-mel that is normalised for each clip, which the graph computes
zipformer_ctc         x [1, T, bins], Kaldi's fbank, x_lens [1] -> log-probabilities, lengths, frames of 40 ms; for
                      models of Kaldi's features
nemo_ctc              audio_signal [B, bands, T], length [B] -> logprobs [B, frames, classes]; reads the metadata
                      vocab_size, normalize_type (empty: unchanged) and subsampling_factor (of 10 ms frames; it takes
                      T // factor frames of the answer); for other log-mel

A frame of the model that is longer is repeated, which changes no text, so that times are right and the last frame
counts. Decoding is greedy; the blank is the token `<blk>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.audio.kaldi import KaldiFeatures
from stentor.data.batch import Example
from stentor.export.onnx.ctc import CTCGraph, blank_of, classes_of, outputs_with_times, refusal, units, write_symbols
from stentor.export.onnx.frontend import KaldiFrontend, ParakeetFrontend, WaveFrontend, frontend
from stentor.export.onnx.trace import add_metadata, trace
from stentor.export.sherpa.exporter import SherpaExporter, result_of, usage_of
from stentor.export.sherpa.features import BANDS, SherpaFeatures
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.encoders.features import FixedWhisperMel

LOUDNESS = 0.1
"""Root mean square of what sherpa-onnx has normalised, as speech usually is recorded."""
USAGE = usage_of(
    'files = {"model": "{folder}/model.onnx", "tokens": "{folder}/tokens.txt"}\n'
    "recognizer = sherpa_onnx.OfflineRecognizer.{method}(**files{options})",
    "Cut long recordings at pauses (sherpa-onnx has `VoiceActivityDetector`), and give it one stream at a time.",
)


@dataclass(frozen=True)
class Route:
    """The way in which sherpa-onnx runs a model."""

    method: str
    """Constructor of `sherpa_onnx.OfflineRecognizer`."""
    step: float
    """Seconds that a frame of the answer is taken to be."""
    bands: int | None = None
    """Bands that it is asked for. None: no such option."""

    @property
    def options(self) -> dict[str, int]:
        """Options of the constructor, besides the files."""
        return {} if self.bands is None else {"feature_dim": self.bands}


def route(bundle: Bundle) -> Route:
    """The way of a model that has a front end."""
    front = frontend(bundle.processor)
    if isinstance(front, WaveFrontend | ParakeetFrontend):
        return Route("from_omnilingual_asr_ctc", 0.02)
    if isinstance(front, KaldiFrontend) and not isinstance(front.settings, FixedWhisperMel):
        return Route("from_zipformer_ctc", 0.04, front.settings.num_mel_bins)
    return Route("from_nemo_ctc", 0.01, BANDS)


class AudioGraph(nn.Module):
    """audio [1, samples] to log-probabilities [1, frames, classes]."""

    def __init__(self, bundle: Bundle, repeat: int):
        super().__init__()
        self.features, self.ctc = frontend(bundle.processor), CTCGraph(bundle, repeat)

    def forward(self, audio: Tensor) -> Tensor:
        return self.ctc(*self.features(LOUDNESS * audio))[0]  # type: ignore[no-any-return]


class FbankGraph(AudioGraph):
    """Kaldi's fbank [1, T, bins] and T to log-probabilities and frames."""

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        front: Any = self.features
        features, lengths = front.joined(x.transpose(1, 2))
        return self.ctc(features, torch.minimum(lengths, x_lens))  # type: ignore[no-any-return]


class NemoGraph(nn.Module):
    """Log energies of sherpa-onnx for NeMo [B, bands, T] and their lengths to log-probabilities and frames."""

    def __init__(self, bundle: Bundle, repeat: int):
        super().__init__()
        # Its class for these files has bands and window of NeMo's streams.
        self.features = SherpaFeatures(bundle.processor.shape.log_mel, bundle.processor.shape.mels, True)
        self.ctc = CTCGraph(bundle, repeat)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        return self.ctc(self.features(audio_signal, length), length)  # type: ignore[no-any-return]


class CTCSherpa(SherpaExporter):
    """Graph and tokens of a CTC model for sherpa-onnx."""

    usage = USAGE

    def refusal(self, bundle: Bundle) -> str | None:
        if reason := refusal(bundle):
            return reason
        if units(bundle) is None:
            return "sherpa-onnx writes the texts of tokens one after the other, which this model's tokenizer does not"
        front = frontend(bundle.processor)
        if isinstance(front, KaldiFrontend) and not isinstance(front.settings, FixedWhisperMel):
            keys = set(KaldiFeatures.model_fields) - {"num_mel_bins", "dither"}
            usual, ours = KaldiFeatures().model_dump(include=keys), front.settings.model_dump(include=keys)
            if different := [key for key in usual if usual[key] != ours[key]]:
                return f"sherpa-onnx has fixed settings of Kaldi's features, and the model has another {different[0]}"
        step, frame = route(bundle).step, bundle.processor.frame_seconds
        if abs(frame / step - round(frame / step)) > 1e-6:
            return f"sherpa-onnx counts frames of {step:g} s for such features, and those of the model are {frame:g} s"
        options = "".join(f", {name}={value}" for name, value in route(bundle).options.items())
        usage = USAGE.replace("{method}", route(bundle).method).replace("{options}", options)
        self.usage = usage  # type: ignore[misc]  # of this model
        return None

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle, path, way = model.bundle, folder / "model.onnx", route(model.bundle)
        repeat = round(bundle.processor.frame_seconds / way.step)
        graph, inputs, axes = _graph(bundle, way, repeat)
        outputs = ["logprobs", "lengths"][: 1 if type(graph) is AudioGraph else 2]
        trace(graph, inputs, axes, outputs, path, "encoder with its CTC head")
        facts = {"vocab_size": classes_of(bundle), "normalize_type": "", "subsampling_factor": 1}
        add_metadata(path, {"model_type": "EncDecCTCModel", **facts} if isinstance(graph, NemoGraph) else {})
        written = units(bundle)
        assert written is not None
        write_symbols(folder / "tokens.txt", written, blank_of(bundle))

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        import sherpa_onnx

        from stentor.export.templates.transcribing import timed_words

        way = route(model.bundle)
        make = vars(sherpa_onnx.OfflineRecognizer)[way.method].__func__
        files = {"model": str(folder / "model.onnx"), "tokens": str(folder / "tokens.txt")}
        recognizer = make(sherpa_onnx.OfflineRecognizer, **files, **way.options)
        answers = []
        for example in examples:
            result = result_of(recognizer, example.audio)
            times = zip(result.timestamps, [*result.timestamps[1:], len(example.audio) / 16000])  # type: ignore[arg-type]
            words = timed_words([token.replace("\u2581", " ") for token in result.tokens], times)
            answers.append({"text": result.text.strip(), "words": words})
        return answers

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return outputs_with_times(model, examples, room=False)


def _graph(bundle: Bundle, way: Route, repeat: int) -> tuple[nn.Module, dict[str, Tensor], dict[str, tuple[int, ...]]]:
    """The graph of a way with example inputs and free axes."""
    if way.bands is None:
        return AudioGraph(bundle, repeat), {"audio": 0.1 * torch.randn(1, 21_000)}, {"audio": (1,)}
    if way.method == "from_zipformer_ctc":
        inputs = {"x": torch.randn(1, 131, way.bands), "x_lens": torch.tensor([131])}
        return FbankGraph(bundle, repeat), inputs, {"x": (1,), "x_lens": ()}
    inputs = {"audio_signal": torch.randn(2, way.bands, 131) - 5, "length": torch.tensor([131, 117])}
    return NemoGraph(bundle, repeat), inputs, {"audio_signal": (0, 2), "length": (0,)}
