"""Pocket TTS for sherpa-onnx 2.0.1: the files of `OfflineTtsPocketModelConfig`, which it feeds by the order of inputs.

text_conditioner, lm_main, lm_flow    see `stentor.export.onnx.speak`
encoder      audio [1, 1, samples] -> embeddings of the voice [1, T, 1024]
decoder      latents [1, T, 32], those before them behind one position of zeros [1, P, 32] -> audio [1, 1, samples], all
             latents so far; it computes all of them again for each chunk (`chunk_size` of its options)
vocab.json, token_scores.json         pieces of the tokenizer (Unigram) with ids and scores

Widths, 24 kHz and the end's threshold of -4 are written in sherpa-onnx (csrc/offline-tts-pocket-impl.h).
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.audio.synth import say
from stentor.data.batch import Example
from stentor.export.onnx.codec import FRAMES, whole_frames
from stentor.export.onnx.speak import VoiceGraph, generation_of, prompt_parts, write_flow
from stentor.export.onnx.trace import trace
from stentor.export.sherpa.exporter import SherpaExporter
from stentor.inference.model import Model
from stentor.models.base import Bundle
from stentor.models.tts.processor import Prompt

WIDTH, LATENTS, RATE = 1024, 32, 24000
"""Sizes that sherpa-onnx takes for granted."""
MOST = 500
"""Frames after which it stops."""
USAGE = """\
sherpa-onnx (2.0.1 or newer) speaks with these files, always in the voice of a recording:

```python
import json, sherpa_onnx, soundfile

graphs, tables = ("lm_flow", "lm_main", "encoder", "decoder", "text_conditioner"), ("vocab_json", "token_scores_json")
files = {n: f"{folder}/{n}.onnx" for n in graphs} | {n: f"{folder}/{n}.json" for n in tables}
pocket = sherpa_onnx.OfflineTtsPocketModelConfig(**files)
tts = sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(model=sherpa_onnx.OfflineTtsModelConfig(pocket=pocket)))
settings, used = sherpa_onnx.GenerationConfig(), json.load(open("{folder}/settings.json"))
settings.num_steps, settings.extra = used["num_steps"], {**used["extra"], "seed": "1"}
settings.reference_audio, settings.reference_sample_rate = soundfile.read("voice.wav", dtype="float32")
speech = tts.generate("Hello there.", settings)
soundfile.write("hello.wav", speech.samples, speech.sample_rate)
```
"""


class EncoderGraph(nn.Module):
    """Embeddings of the voice of audio of any length."""

    def __init__(self, codec: Any, voice: VoiceGraph):
        super().__init__()
        self.model, self.hop, self.voice = codec.model, codec.hop, voice

    def forward(self, audio: Tensor) -> Tensor:
        count = (audio.shape[2] + self.hop - 1) // self.hop
        padded = F.pad(audio, (0, self.hop - 1))[:, :, : count * self.hop]
        return self.voice(self.model.encode(padded).latents)


class DecoderGraph(nn.Module):
    """Audio of latents behind others."""

    def __init__(self, codec: Any, pretrained: Any):
        super().__init__()
        self.model, self.hop = codec.model, codec.hop
        self.mean, self.std = pretrained.latent_mean, pretrained.latent_std

    def forward(self, latent: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat([past, latent], 1)
        wave = self.model.decode(whole[:, 1:] * self.std + self.mean).audio_values
        return wave[:, :, (past.shape[1] - 1) * self.hop :], whole


class PocketTTSSherpa(SherpaExporter):
    """Files for `OfflineTts`."""

    usage = USAGE
    exact = ("encoder.onnx", "decoder.onnx")

    def refusal(self, bundle: Bundle) -> str | None:
        processor: Any = bundle.processor
        if bundle.family.type != "tts" or processor.model_types[0] != "pocket_tts":
            return "sherpa-onnx 2.0.1 speaks with Pocket TTS alone, of the models that Stentor trains"
        sizes = bundle.model.config.hidden_size, processor.codebooks, processor.codec.sample_rate
        if sizes != (WIDTH, LATENTS, RATE):
            return (
                f"sherpa-onnx 2.0.1 reads Pocket TTS of width {WIDTH} with {LATENTS} latents at {RATE} Hz alone; this "
                "one has {}, {} and {}".format(*sizes)
            )
        if processor.codec.type != "pocket_tts" or processor.codec.model.encoder is None:
            return "sherpa-onnx always needs a voice, and this model's codec cannot read one"
        if json.loads(processor.tokenizer.backend_tokenizer.to_str())["model"]["type"] != "Unigram":
            return "sherpa-onnx reads Unigram tokenizers of SentencePiece alone for it"
        return None

    def write_graphs(self, model: Model, folder: Path) -> None:
        bundle, processor = model.bundle, model.bundle.processor
        pretrained, codec = bundle.model.pretrained, processor.codec  # type: ignore[attr-defined]
        with torch.no_grad():
            write_flow(bundle, folder)
        (folder / "voice.onnx").unlink()
        with whole_frames(codec), torch.no_grad():
            audio, voice = torch.randn(1, 1, FRAMES * codec.hop), VoiceGraph(pretrained, prompt_parts(processor))
            encoder, part = EncoderGraph(codec, voice), f"encoder of the codec {codec.type}"
            trace(encoder, {"audio": audio}, {"audio": (2,)}, ["latents"], folder / "encoder.onnx", part)
            given = {"latent": torch.randn(1, 5, LATENTS), "past": torch.zeros(1, 7, LATENTS)}
            decoder, part = DecoderGraph(codec, pretrained), f"decoder of the codec {codec.type}"
            trace(decoder, given, {"latent": (1,), "past": (1,)}, ["audio", "next"], folder / "decoder.onnx", part)
        vocabulary = json.loads(processor.tokenizer.backend_tokenizer.to_str())["model"]["vocab"]  # type: ignore[attr-defined]
        tables = {"vocab_json": {p: i for i, (p, _) in enumerate(vocabulary)}, "token_scores_json": dict(vocabulary)}
        for name, table in tables.items():
            (folder / f"{name}.json").write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
        settings, after = generation_of(bundle), processor.hf.settings.get("frames_after_eos", 2)  # type: ignore[attr-defined]
        extra = {"temperature": f"{settings['temperature']:g}", "frames_after_eos": str(after + 1)}
        extra["chunk_size"] = str(MOST)
        used = {"num_steps": settings["flow_steps"], "extra": extra}
        (folder / "settings.json").write_text(json.dumps(used) + "\n", encoding="utf-8")

    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        import sherpa_onnx

        names = ("lm_flow", "lm_main", "encoder", "decoder", "text_conditioner")
        files = {name: str(folder / f"{name}.onnx") for name in names}
        tables = {name: str(folder / f"{name}.json") for name in ("vocab_json", "token_scores_json")}
        pocket = sherpa_onnx.OfflineTtsPocketModelConfig(**files, **tables)
        config = sherpa_onnx.OfflineTtsModelConfig(pocket=pocket, num_threads=1)
        tts = sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(model=config))
        options, steps = sherpa_onnx.GenerationConfig(), generation_of(model.bundle)["flow_steps"]
        options.reference_audio, options.reference_sample_rate = voice().tolist(), RATE
        options.num_steps, options.silence_scale = steps, 1.0
        options.extra = {"temperature": "0", "frames_after_eos": "3", "max_char_in_sentence": "100000"}
        options.extra = {**options.extra, "chunk_size": str(MOST)}
        return [_in_frames(np.array(tts.generate(e.text, options).samples, np.float32), model) for e in examples]

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Without chance, as sherpa-onnx draws its own, and in one voice: its endings, of three frames."""
        processor: Any = model.bundle.processor
        latents, outputs = processor.codec.encode([voice()])[0], []
        for example in examples:
            prompt: Prompt = processor.utterance(example.text, reference=(latents, ""), frames=1)
            prompt.limit, prompt.after = MOST, 2
            steps = generation_of(model.bundle)["flow_steps"]
            options = {"do_sample": False, "num_flow_steps": steps, "min_frames_before_eos": 0}
            with torch.no_grad():
                codes = type(processor).generate(model.bundle.model.pretrained, prompt, **options)  # type: ignore[union-attr]
            outputs.append(_in_frames(processor.codec.decode([codes])[0], model))
        return outputs


def voice() -> np.ndarray:
    """A voice that both are given, float32 [samples] at 24 kHz."""
    audio = say("one two three seven").audio
    places = np.arange(0, len(audio) - 1, 16000 / RATE)
    return np.interp(places, np.arange(len(audio)), audio).astype(np.float32)


def _in_frames(audio: np.ndarray, model: Model) -> dict[str, Any]:
    """Audio, and as codes its samples by frame: sherpa-onnx shows no latents."""
    hop = model.bundle.processor.codec.hop  # type: ignore[attr-defined]
    padded = np.pad(audio, (0, max(0, hop - len(audio))))
    return {"audio": audio, "codes": padded[: math.floor(len(padded) / hop) * hop].reshape(-1, hop).T}
