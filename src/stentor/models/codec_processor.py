"""Base of the processors of models of codec tokens: text to ids, audio to codes, and checks of both."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stentor.data.augment import Augment
from stentor.data.batch import Batch, Example
from stentor.data.codec_tokens import AcceptsCodecTokens, has_codes
from stentor.data.cut import Cut, field_of
from stentor.data.feature_cache import CachedFeatures, FeatureCache
from stentor.errors import AudioError, ConfigError
from stentor.models.codecs.base import AudioCodec, at_peak, check_codes
from stentor.models.contracts import Processor
from stentor.models.text.control_tokens import as_text, template_ids

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.speaking_rate import SpeakingRate
    from stentor.models.base import TaskRequirements

RATE, FRAMES = 24000, 25.0
"""Sample rate and frames per second of OmniVoice's codec, where there is none to ask."""
OTHER = 0.1
"""Share by which the number of frames of a record may differ from what the codec would make of so much audio."""
PATIENCE = 60.0
"""Most seconds of encoding before training begins."""
MEMORY = 1 << 28
"""Most bytes of codes that one process keeps of audio that it encoded."""

Encoded = list[tuple[Example, "np.ndarray"]]
Dropped = list[tuple[str, str, str]]


class CodecProcessor(AcceptsCodecTokens, FeatureCache, Processor):
    """Texts and codes, or audio, which `codec` encodes."""

    max_seconds: float | None = None
    tags: ClassVar[re.Pattern[str] | None] = None
    """Tags that the model knows in texts, in one group. None: there are none."""
    pace: SpeakingRate | None = None
    """Speaking rate of the training records, for the length of speech."""

    def __init__(self, tokenizer: Any, codebooks: int, vocabulary: int | None, codec: AudioCodec | None = None):
        """`tokenizer`: of transformers; `vocabulary`: entries of a codebook without special ones, None of codecs whose
        codes are real numbers."""
        self.tokenizer = tokenizer
        self.codebooks, self.vocabulary = codebooks, vocabulary
        self.codec = codec
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
        """Token ids of a text, see `template_ids`."""
        return self.template_ids(self.plain(text))

    def plain(self, text: str) -> str:
        """A text for a template: names of control tokens in it are text, except `tags`."""
        parts = self.tags.split(text) if self.tags is not None else [text]
        return "".join(part if i % 2 else as_text(self.tokenizer, part) for i, part in enumerate(parts))

    def template_ids(self, string: str) -> list[int]:
        """Token ids of a string with control tokens, as one string in training and in use. Characters without a token
        are left out: the unknown token is not trained."""
        ids = template_ids(self.tokenizer, string)
        unknown = self.tokenizer.unk_token_id
        return ids if unknown is None else [i for i in ids if i != unknown]

    def knows(self, text: str) -> bool:
        """Whether the tokenizer has a token for any character of a text that is no white space."""
        if self.tokenizer.unk_token_id is None:  # of bytes: it knows all
            return bool(text.strip())
        return bool(self.ids("".join(text.split())))

    def drop_reason(self, example: Example, training: bool) -> tuple[str, str] | None:
        text, codes = example.text or "", example.extra.get("codes")
        if not self.knows(text):
            return "not_in_alphabet", (
                f"{example.id}: the tokenizer knows no character of {text[:40]!r}; use a language model whose "
                "tokenizer does, or train on texts that have them."
            )
        if self.codec is None and codes is None:
            return "no_codec", (
                f"{example.id}: the record has audio but no codec tokens, and there is no codec to make them: set "
                "`model.codec`, or train on token shards (`stentor prepare tokens`)."
            )
        seconds = example.extra.get("seconds", 0.0)
        if self.codec is not None and codes is not None and seconds > 1:
            labelled, expected = codes.shape[1], self.codec.frames(round(seconds * self.sample_rate))
            if abs(labelled - expected) > 2 + OTHER * expected:
                return "other_codec", (
                    f"{example.id}: the shards have {labelled / seconds:.1f} frames a second, the model's codec "
                    f"({self.codec.type}) {self.codec.frame_rate:g}: set `model.codec` to the codec that made them."
                )
        return None

    def frames(self, cut: Cut, seconds: float) -> int:
        """Frames of codes of a record: those of its label, or of so much audio."""
        if has_codes(cut) and (count := field_of(cut, "num_tokens")) is not None:
            return int(count)
        if self.codec is not None:
            return self.codec.frames(round(seconds * self.codec.sample_rate))
        return round(seconds * FRAMES)

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

    def encoded(self, examples: Sequence[Example]) -> tuple[Encoded, Dropped]:
        """The examples with their codes, and, as in `Batch.dropped`, those without codes that fit the model."""
        encoded: Encoded = []
        dropped: Dropped = []
        for example in examples:
            try:
                codes = self.codes(example)
                self.check_codes(codes)
            except AudioError as error:
                dropped.append((example.id, error.reason, f"{example.id}: {error}"))
                continue
            encoded.append((example, codes))
        return encoded, dropped

    def batch(self, encoded: Encoded, dropped: Dropped, **parts: Any) -> Batch:
        """The batch of these examples."""
        seconds = sum(e.extra.get("seconds", codes.shape[1] / self.frame_rate) for e, codes in encoded)
        return Batch(ids=[e.id for e, _ in encoded], seconds=seconds, dropped=dropped, **parts)

    def check_codes(self, codes: np.ndarray) -> None:
        """Raises AudioError for codes that are not the model's."""
        check_codes(codes, self.codebooks, self.vocabulary, "this model")

    def cached_features(self, cut: Cut) -> CachedFeatures | None:
        from stentor.data.audio_key import audio_key
        from stentor.data.load_audio import load_audio

        assert self.codec is not None
        key = audio_key(cut)
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


def check_terms(family: str, requirements: TaskRequirements, loss: str) -> None:
    """Raises ConfigError unless the one loss term is `codes`, for which `loss` is the usual type."""
    if others := [term for term in requirements.terms if term != "codes"]:
        raise ConfigError(
            f"A model of type {family} is trained with one loss term named `codes`, not {others[0]}: write "
            f"`losses: {{codes: {loss}}}`, or leave `losses` out."
        )


def check_codec(codec: AudioCodec | None, codebooks: int, entries: int | None, key: str, smaller: bool = False) -> None:
    """Raises ConfigError for a codec that does not make the codes of a model; `smaller` allows fewer entries."""
    if codec is None:
        return
    fewer = smaller and codec.vocabulary is not None and entries is not None and codec.vocabulary < entries
    if codec.codebooks == codebooks and (fewer or codec.vocabulary == entries):
        return
    raise ConfigError(
        f"{key}: the codec {codec.type} has {codec.codebooks} codebooks of {codec.vocabulary} entries, the model "
        f"{codebooks} of {entries}: they do not fit. Give the codec that the model was trained with."
    )
