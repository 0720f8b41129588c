"""Processor of OmniVoice: examples to batches. Holds no part of the model, so that loader workers can have it."""

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lhotse.cut import Cut

from stentor.audio.synth import phonemes
from stentor.data.augment import Augment
from stentor.data.batch import Batch, Example
from stentor.data.codec_tokens import AcceptsCodecTokens, has_codes
from stentor.data.cut import field_of, language_of, text_of
from stentor.data.feature_cache import CachedFeatures, FeatureCache
from stentor.data.load_audio import load_audio
from stentor.data.speaking_rate import SpeakingRate
from stentor.errors import AudioError, ConfigError
from stentor.models.codecs.base import AudioCodec, at_peak
from stentor.models.omnivoice.prompt import Prompt
from stentor.models.omnivoice.sample import IGNORED, Sample, build
from stentor.models.omnivoice.text import ABSENT, cleaned, ids_of, spoken, style, style_language
from stentor.models.packing.flex import BLOCK, tables
from stentor.models.speech_llm.tokenizers import padding_id
from stentor.models.transformer.feature_cache import key_of

CODEC = "audio_tokenizer"
"""Folder of the codec in a model's folder."""
RATE, FRAMES = 24000, 25.0
"""Sample rate and frames per second of OmniVoice's codec, where there is none to ask."""
STYLES = 10_000
"""Languages and instructs whose lengths are remembered."""
OTHER = 0.1
"""Share by which the number of frames of a record may differ from what the codec would make of so much audio."""
PATIENCE = 60.0
"""Most seconds of encoding before training begins."""
MEMORY = 1 << 28
"""Most bytes of codes that one process keeps of audio that it encoded."""


class OmniVoiceProcessor(AcceptsCodecTokens, FeatureCache):
    """Texts and codes (or audio, which `codec` encodes) to ids, masks and labels."""

    max_seconds: float | None = None

    def __init__(self, tokenizer: Any, codebooks: int, vocabulary: int, mask_id: int, codec: AudioCodec | None = None):
        """`tokenizer`: a fast transformers tokenizer with OmniVoice's special tokens; `vocabulary`: entries of a
        codebook without MASK."""
        self.tokenizer = tokenizer
        self.codebooks, self.vocabulary, self.mask_id = codebooks, vocabulary, mask_id
        self.codec = codec
        self.codec_missing: str | None = None  # why there is none, where there should be one
        self.instruct_from: str | None = None  # the field that describes the voice of records without an `instruct`
        self.letters: str | None = None  # letters and digits of the training texts; None: not known
        self.phonemes: str | None = None  # the built-in voice by whose rules texts become phonemes; None: letters
        self.pace: SpeakingRate | None = None  # of the training records, for the length of what is spoken
        self.pad_id = padding_id(tokenizer)
        self.flex = False  # packed batches carry the block tables of flex_attention
        self._costs: dict[str, int] = {}
        self._cached: dict[str, np.ndarray] = {}
        self._bytes = 0

    @property
    def sample_rate(self) -> int:  # type: ignore[override]
        """Hz of the audio that the codec takes."""
        return self.codec.sample_rate if self.codec is not None else RATE

    @property
    def frame_rate(self) -> float:
        """Frames of codes per second."""
        return self.codec.frame_rate if self.codec is not None else FRAMES

    # Text

    def ids(self, text: str) -> list[int]:
        """Token ids of a string, characters that the tokenizer does not know left out."""
        return ids_of(self.tokenizer, text)

    def text_ids(
        self, text: str, language: str | None = None, instruct: str | None = None, denoise: bool = False
    ) -> list[int]:
        """Style and text as the model reads them, in training and in use."""
        return self.ids(style(language, instruct, denoise)) + self.ids(spoken(self.read(text)))

    def read(self, text: str) -> str:
        """The text as it is tokenised: cleaned up, and as phonemes where they are asked for."""
        return phonemes(cleaned(text), self.phonemes) if self.phonemes else cleaned(text)

    def knows(self, text: str) -> bool:
        """Whether the tokenizer has a token for any character of a text that is no white space."""
        if self.phonemes or self.tokenizer.unk_token_id is None:  # of sounds or of bytes: it knows all
            return bool(text.strip())
        return bool(self.ids("".join(text.split())))

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        """See `Family.drop_reason`."""
        text = text_of(cut) or ""
        if not self.knows(text):
            return "not_in_alphabet", (
                f"{cut.id}: the tokenizer knows no character of {text[:40]!r}; take a language model whose tokenizer "
                "does, or train on texts that have them."
            )
        if self.codec is None and not has_codes(cut):
            return "no_codec", (
                f"{cut.id}: the record has audio but no codec tokens, and there is no codec to make them: set "
                "`model.codec`, or train on token shards (`stentor prepare tokens`)."
            )
        if self.codec is not None and has_codes(cut) and cut.duration > 1:
            labelled = self.frames(cut, cut.duration)
            expected = self.codec.frames(round(cut.duration * self.sample_rate))
            if abs(labelled - expected) > 2 + OTHER * expected:
                return "other_codec", (
                    f"{cut.id}: the shards have {labelled / cut.duration:.1f} frames a second, the model's codec "
                    f"({self.codec.type}) {self.codec.frame_rate:g}: set `model.codec` to the codec that made them."
                )
        return None

    # Lengths, from metadata alone

    def frames(self, cut: Cut, seconds: float) -> int:
        """Frames of codes of a record: those of its label, or of so much audio."""
        if has_codes(cut) and (count := field_of(cut, "num_tokens")) is not None:
            return int(count)
        if self.codec is not None:
            return self.codec.frames(round(seconds * self.codec.sample_rate))
        return round(seconds * FRAMES)

    def tokens(self, cut: Cut, seconds: float) -> int:
        """Most positions that one item takes, whatever parts of its style are dropped: style, text and frames."""
        instruct = field_of(cut, "instruct") or (field_of(cut, self.instruct_from) if self.instruct_from else None)
        denoise = field_of(cut, "clean_start_token_idx") is not None
        styled = self._style_cost(style_language(language_of(cut))) + self._style_cost(instruct) + denoise
        text = len(self.ids(self.read(text_of(cut) or "")))
        if pinyin := field_of(cut, "text_pinyin"):
            text = max(text, len(self.ids(self.read(pinyin))))
        return styled + 2 + text + self.frames(cut, seconds)

    def _style_cost(self, value: Any) -> int:
        """Most positions of one part of the style, whether dropped or not; cached, as many records share them."""
        key = ABSENT if value in (None, "") else str(value)
        if key not in self._costs:
            if len(self._costs) >= STYLES:
                self._costs.clear()
            self._costs[key] = 2 + max(len(self.ids(key)), len(self.ids(ABSENT)))
        return self._costs[key]

    # Codes

    def codes(self, example: Example) -> np.ndarray:
        """Codec tokens of an example, integers [codebooks, frames]: `extra["codes"]`, of token shards or of an earlier
        call; cached ones; or those of its audio. Raises AudioError."""
        if "codes" not in example.extra:
            if (codes := example.extra.get("features")) is None:
                assert self.codec is not None and example.audio is not None
                codes = self.codec.encode([at_peak(example.audio)])[0]
            example.extra["codes"] = codes
        return example.extra["codes"]  # type: ignore[no-any-return]

    def _check(self, codes: np.ndarray) -> None:
        """Raises AudioError for codes that are not the model's."""
        if codes.ndim != 2 or len(codes) != self.codebooks or not codes.shape[1]:
            raise AudioError(
                f"The codes have the shape {list(codes.shape)}; this model takes [{self.codebooks}, frames].",
                "wrong_shape",
            )
        if codes.min() < 0 or codes.max() >= self.vocabulary:
            raise AudioError(
                f"The codes go from {codes.min()} to {codes.max()}; this model's are 0 to {self.vocabulary - 1}.",
                "wrong_range",
            )

    def cached_features(self, cut: Cut) -> CachedFeatures | None:
        assert self.codec is not None
        key = key_of(cut)
        codes = self._cached.get(key)
        if codes is None:
            codes = self.codec.encode([at_peak(load_audio(cut, self.codec.sample_rate))])[0]
            if self._bytes < MEMORY:
                self._cached[key] = codes
                self._bytes += codes.nbytes
        return CachedFeatures(codes, round(cut.duration * self.codec.sample_rate))

    def check_cache(self, cuts: Sequence[Cut], augment: Augment) -> list[str]:
        """Encodes audio of the training data for at most a minute, before the loader workers are forked."""
        if self.codec is None or not augment.keeps():
            return []
        audio_cuts = [cut for cut in cuts if not has_codes(cut)]
        start, seconds, tried, done = time.monotonic(), 0.0, 0, 0
        for cut in audio_cuts:
            if time.monotonic() - start > PATIENCE or self._bytes >= MEMORY:
                break
            tried += 1
            try:
                self.cached_features(cut)
            except AudioError:  # counted where it is read for training
                continue
            done += 1
            seconds += cut.duration
        if not done:
            return []
        elapsed, left = time.monotonic() - start, len(audio_cuts) - tried
        message = (
            f"Encoded {done:,} records ({seconds / 3600:.2f} h) with the codec {self.codec.type} in {elapsed:.0f} s."
        )
        if left:
            message += f" The other {left:,} are encoded whenever they are read: `stentor prepare tokens` does it once."
        return [message]

    # Batches

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        """A batch with the conditions of `extra["conditions"]`, its cells masked by `Example.rng`. Items whose codes
        are not the model's, or cannot be made, are listed in `Batch.dropped`."""
        dropped, encoded, samples = [], [], []
        for example in examples:
            try:
                codes = self.codes(example)
                self._check(codes)
            except AudioError as error:
                dropped.append((example.id, error.reason, f"{example.id}: {error}"))
                continue
            encoded.append((example, codes.shape[1]))
            samples.append(self.sample(example, codes))
        if not samples:
            return Batch(inputs={}, counts={}, ids=[], dropped=dropped)
        inputs = self.packed(samples) if packed else self.padded(samples)
        counts = {f"codes_{c}": len(inputs[f"targets_{c}"]) for c in range(self.codebooks)} if labels else {}
        return Batch(
            inputs=inputs,
            counts=counts,
            ids=[e.id for e, _ in encoded],
            seconds=sum(e.extra.get("seconds", frames / self.frame_rate) for e, frames in encoded),
            tokens=sum(s.length for s in samples),
            num_positions=inputs["audio_mask"].numel(),
            dropped=dropped,
        )

    def sample(self, example: Example, codes: np.ndarray) -> Sample:
        """The sample of one example with its codes [C, T]."""
        conditions = example.extra["conditions"]
        text: list[int] = []
        if not conditions.unconditional:
            text = self.text_ids(conditions.text, conditions.language, conditions.instruct, conditions.denoise)
        assert example.rng is not None
        # A copy: the same example gives the same sample each time.
        return build(conditions, codes, text, self.mask_id, copy.deepcopy(example.rng))

    def padded(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Inputs of the model's forward, samples padded at the right to the longest."""
        width = max(s.length for s in samples)
        starts = [i * width for i in range(len(samples))]
        inputs = self._inputs(samples, starts, len(samples), width)
        if any(s.length < width for s in samples):
            inputs["lengths"] = torch.tensor([s.length for s in samples])
        return inputs

    def packed(self, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
        """Inputs of the model's forward, samples end to end in one row."""
        lengths = [s.length for s in samples]
        total = sum(lengths)
        width = rounded(total) if self.flex else total
        if width > total:
            lengths.append(width - total)
        inputs = self._inputs(samples, np.cumsum([0, *lengths])[: len(samples)].tolist(), 1, width)
        inputs["position_ids"] = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))[None]
        if self.flex:
            return inputs | tables(lengths, causal=False)
        documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        return inputs | {"documents": torch.from_numpy(documents)}

    def _inputs(
        self, samples: Sequence[Sample], starts: Sequence[int], rows: int, width: int
    ) -> dict[str, torch.Tensor]:
        """Inputs of both layouts; `starts` are the samples' positions in the flattened [rows * width]."""
        ids = np.full((self.codebooks, rows * width), self.pad_id)
        labels = np.full((self.codebooks, rows * width), IGNORED)
        audio = np.zeros(rows * width, bool)
        for sample, start in zip(samples, starts, strict=True):
            end = start + sample.length
            ids[:, start:end], labels[:, start:end] = sample.ids, sample.labels
            audio[start + sample.text : end] = True
        positions = [np.flatnonzero(row != IGNORED) for row in labels]
        inputs = {
            "input_ids": torch.from_numpy(ids.reshape(-1, rows, width).swapaxes(0, 1).copy()),
            "audio_mask": torch.from_numpy(audio).view(rows, width),
            "rows": torch.from_numpy(np.concatenate(positions)),
        }
        return inputs | {f"targets_{c}": torch.from_numpy(labels[c, p]) for c, p in enumerate(positions)}

    # Use

    def utterance(
        self,
        text: str,
        language: str | None = None,
        instruct: str | None = None,
        reference: tuple[Any, str] | None = None,
        frames: int | None = None,
        denoise: bool = False,
    ) -> Prompt:
        """The prompt of an utterance: style, the reference's text and the text in one, the reference's codes, as in a
        training sample with a prompt.

        `reference` is (codes [C, T], their text). `denoise` asks for clean speech after a noisy reference and is
        nothing without one. `frames`, the length of the speech, must be at least 1.
        """
        if frames is None or frames < 1:
            raise ValueError(f"an utterance of {frames} frames")
        codes = torch.zeros(self.codebooks, 0, dtype=torch.long)
        if reference is not None:
            codes = torch.as_tensor(reference[0]).long()
            text = f"{reference[1].strip()} {text.strip()}"
        ids = self.text_ids(text, language, instruct, denoise and reference is not None)
        rows = torch.tensor(ids).expand(self.codebooks, -1)
        return Prompt(torch.cat([rows, codes], 1), torch.arange(len(ids) + codes.shape[1]) >= len(ids), frames)

    # Files

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files, and the codec into `audio_tokenizer`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        if self.codec is not None:
            (folder / CODEC).mkdir(exist_ok=True)
            self.codec.save(folder / CODEC)


def rounded(total: int) -> int:
    """A length of whole blocks for so many positions, one of about sixteen between two powers of two: kernels that are
    compiled for a length then see few of them."""
    step = max(BLOCK, 1 << max(total.bit_length() - 5, 0))
    return -(-total // step) * step


def check_codec(codec: AudioCodec | None, codebooks: int, entries: int, key: str) -> None:
    """Raises ConfigError for a codec that does not make the codes of a model."""
    if codec is not None and (codec.codebooks, codec.vocabulary) != (codebooks, entries):
        raise ConfigError(
            f"{key}: the codec {codec.type} has {codec.codebooks} codebooks of {codec.vocabulary} entries, the model "
            f"{codebooks} of {entries}: they do not fit. Give the codec that the model was trained with."
        )
