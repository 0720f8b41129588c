"""A speech LLM that onnxruntime runs, from the graphs that `onnx` writes: what the tasks ask of a model.

Search, words and times are found by the code that the torch model uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.contracts import GenerationOutput
from stentor.models.decoding.search import LanguageModelDecoder, search, token_limits
from stentor.models.encoders.cache import EncoderCache
from stentor.models.encoders.geometry import Geometry
from stentor.models.runtimes.graph import Graph, OnCPU, graphs_of, place
from stentor.models.speech_llm.aligner import WordAligner
from stentor.models.speech_llm.boundaries import Scores
from stentor.models.speech_llm.modeling import SpeechLLMModel, lowest_of_words


class OnnxModel(OnCPU, EncoderCache):
    """The graphs behind the methods that tasks and inference call; see `SpeechLLMModel` for their arguments.

    Answers lie on the CPU, where onnxruntime runs.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], shape: Geometry):
        super().__init__()
        self.place = place()
        self.shape, self.factor = shape, facts["frames_per_position"]
        names = sorted({"encoder", "llm"} | facts["graphs"].keys())
        graphs = dict(zip(names, graphs_of(folder, facts, *names)))
        self.encoder, self.llm = graphs["encoder"], graphs["llm"]
        self.ctc_head: Any = graphs.get("ctc")
        self.aligner: Any = OnnxAligner(graphs["aligner"], facts["aligner"], shape) if facts["aligner"] else None
        self.past, self.text_width = facts["past"], facts["text_width"]

    capabilities: Any = SpeechLLMModel.capabilities

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Frames [B, F, width] and audio positions [B, P, text width], zero at padding, and lengths [B] of the frames.
        One clip at a time, each at its own length."""
        if cached := self.cached(features, lengths):
            return cached[0], cached[1], cached[2]
        counts = self.shape.frames(lengths)
        frames, audio = [], []
        for row, length, count in zip(features, lengths.tolist(), counts.tolist()):
            clip = row if self.shape.window else row[..., :length]
            clip_frames, clip_audio, *_ = self.encoder(features=clip[None].float(), lengths=torch.tensor([length]))
            frames.append(clip_frames[0, :count])
            audio.append(clip_audio[0, : -(-count // self.factor)])
        output = pad(frames), pad(audio), counts
        self.store(features, lengths, *output)
        return output

    def frames(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, _, counts = self.encode(features, lengths)
        return hidden, counts

    def ctc_log_probs(self, hidden: Tensor) -> Tensor:
        return pad([self.ctc_head(frames=row[None])[0][0] for row in hidden])

    ctc_classes: Any = SpeechLLMModel.ctc_classes

    def read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        rows: Tensor,
        past: list[Tensor],
        audio: Tensor | None = None,
        audio_index: Tensor | None = None,
    ) -> list[Tensor]:
        """One call of the language model, see `onnx.LLMGraph`: logits [M, V], states and embeddings [B * L, width],
        then keys and values."""
        if audio is None or audio_index is None:
            audio, audio_index = torch.empty(0, self.text_width), torch.empty(0, dtype=torch.long)
        return self.llm(
            input_ids=input_ids,
            audio=audio,
            audio_index=audio_index,
            attention_mask=attention_mask,
            position_ids=position_ids,
            rows=rows,
            **dict(zip(self.past, past)),
        )

    def empty_cache(self, rows: int) -> list[Tensor]:
        """A cache without any position."""
        return [torch.empty(rows, heads, 0, width) for heads, width in self.past.values()]

    def generate(
        self, inputs: dict[str, Tensor], max_new_tokens: int | list[int], eos_ids: set[int], **options: Any
    ) -> list[GenerationOutput]:
        """See `stentor.models.speech_llm.modeling.generate`."""
        limits = token_limits(max_new_tokens, len(inputs["input_ids"]))
        return search(OnnxDecoder(self, inputs), limits, eos_ids, **options)

    def align(
        self,
        features: Tensor,
        feature_lengths: Tensor,
        input_ids: Tensor,
        audio_index: Tensor,
        audio_rows: Tensor,
        text_rows: Tensor,
        word_tokens: Tensor,
        word_parts: Tensor,
        **_: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `SpeechLLMModel.align`; for padded batches."""
        hidden, audio, counts = self.encode(features, feature_lengths)
        spoken = text_rows >= 0
        (batch, size), positions = input_ids.shape, text_rows[spoken]
        mask, position_ids = torch.ones_like(input_ids), torch.arange(size).expand(batch, -1)
        audio, past = audio.flatten(0, 1)[audio_rows], self.empty_cache(batch)
        logits, states, embeds = self.read(input_ids, mask, position_ids, positions - 1, past, audio, audio_index)[:3]
        log_probs = torch.zeros(text_rows.shape)
        log_probs[spoken] = logits.log_softmax(-1).gather(1, input_ids.flatten()[positions][:, None])[:, 0]
        times, sure = torch.zeros(*word_tokens.shape[:2], 2), torch.zeros(word_tokens.shape[:2])
        for i, (length, count) in enumerate(zip(feature_lengths.tolist(), counts.tolist())):
            words = int((word_tokens[i, :, 0] >= 0).sum())
            if words:
                rows = text_rows[i][spoken[i]]
                times[i : i + 1, :words], sure[i : i + 1, :words] = self.aligner.times(
                    self.aligner(
                        features[i : i + 1, ..., :length],
                        hidden[i : i + 1, :count],
                        states[rows],
                        embeds[rows],
                        word_tokens[i : i + 1, :words],
                        word_parts[i : i + 1, :words],
                    )
                )
        return times, sure, lowest_of_words(log_probs, word_tokens)


class OnnxDecoder(LanguageModelDecoder):
    """The language model's graph with its cache, after left-padded prompts were read."""

    def __init__(self, model: OnnxModel, inputs: dict[str, Tensor]):
        self.model = model
        _, audio, _ = model.encode(inputs["features"], inputs["feature_lengths"])
        self.mask, self.position = inputs["attention_mask"], inputs["position_ids"]
        self.past = model.empty_cache(len(self.mask))
        self._read_tokens(inputs["input_ids"], audio.flatten(0, 1)[inputs["audio_rows"]], inputs["audio_index"])
        self.position = self.position[:, -1:]

    def _read_tokens(self, tokens: Tensor, *audio: Tensor) -> None:
        last = torch.arange(1, len(tokens) + 1) * tokens.shape[1] - 1
        logits, _, _, *self.past = self.model.read(tokens, self.mask, self.position, last, self.past, *audio)
        self.log_probs = logits.log_softmax(-1)

    def _select_cache(self, rows: Tensor) -> None:
        self.past = [tensor[rows] for tensor in self.past]


class OnnxAligner:
    """The alignment module: scores from its graph, times from them as the torch module finds them."""

    def __init__(self, graph: Graph, facts: dict[str, Any], shape: Geometry):
        self.graph, self.shape = graph, shape
        self.kind, self.stride = facts["kind"], facts["stride"]
        self.calibration = torch.tensor(facts["calibration"])

    step: Any = WordAligner.step
    points: Any = WordAligner.points
    times: Any = WordAligner.times

    def __call__(
        self, features: Tensor, frames: Tensor, states: Tensor, tokens: Tensor, word_tokens: Tensor, word_parts: Tensor
    ) -> Scores:
        """Boundary scores of one clip without padding; see `onnx.AlignerGraph`."""
        start, end, *inside = self.graph(
            features=features,
            frames=frames,
            states=states,
            tokens=tokens,
            word_tokens=word_tokens,
            word_parts=word_parts,
        )
        words = torch.ones(word_tokens.shape[:2], dtype=torch.bool)
        return Scores(start, end, inside[0] if inside else None, words, self.points(torch.tensor([features.shape[-1]])))


def pad(rows: list[Tensor]) -> Tensor:
    """Rows [N, C] of different lengths as one tensor [B, N, C], zero at padding."""
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)
