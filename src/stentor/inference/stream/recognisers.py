"""Streams: models that answer while one speaks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from stentor.errors import ConfigError
from stentor.inference.options import DecodingOptions
from stentor.models.encoders.streaming.chunks import TINY

if TYPE_CHECKING:
    from stentor.inference.stream.base import Recogniser
    from stentor.inference.stream.chunked import ChunkedRecogniser
    from stentor.inference.vad import Detector
    from stentor.models.base import Bundle
    from stentor.tasks.transcribe import Transcribe

DELAY = 1.0
"""Seconds from one answer to the next of LocalAgreement, where nothing else is asked for."""


class StreamOptions(NamedTuple):
    """Settings of streaming; streams of one model with the same settings share batches."""

    language: str | None = None
    delay: float | None = None
    """Seconds of a chunk, or after which a model on the frame grid writes; with LocalAgreement from one answer to the
    next."""
    policy: Literal["agreement", "ctc"] | None = None
    """LocalAgreement, or the CTC head alone. None: as the model was trained to hear."""
    prompt: str | None = None
    """As `Transcriber` takes it, for models that LocalAgreement asks."""
    hotwords: tuple[str, ...] = ()
    """The same."""
    detector: Detector | None = None
    """Detector of speech and its end. None: by energy."""


class TranscribingModel(Protocol):
    """Interface of a loaded model (`stentor.inference.model.Model`) for streaming."""

    name: str
    bundle: Bundle

    @property
    def knows_times(self) -> bool:
        """Whether its words have times."""

    def for_transcription(self) -> Transcribe:
        """Its task. Raises ConfigError for a model of another one."""


def open_recogniser(model: TranscribingModel, options: StreamOptions) -> Recogniser:
    """Streaming recogniser: the model itself where it was trained for chunks or for a delay
    after it was said, for others LocalAgreement. Raises ConfigError for a model of another task, for a delay that it
    was not trained with, and for what it cannot take."""
    recogniser = _recogniser(model, options)
    if options.detector is not None:
        recogniser.detector = options.detector
    return recogniser


def _recogniser(model: TranscribingModel, options: StreamOptions) -> Recogniser:
    from stentor.inference.stream.agreement import AgreementRecogniser
    from stentor.inference.stream.chunked import CTCHeadRecogniser, CTCRecogniser, TransducerRecogniser
    from stentor.inference.stream.delayed import DelayedRecogniser
    from stentor.inference.transcribe import Transcriber

    task, bundle = model.for_transcription(), model.bundle
    delay, policy, asked_for = options.delay, options.policy, bool(options.prompt or options.hotwords)
    if delay is not None and not 0 < delay < math.inf:
        raise ConfigError(f"A delay of {delay:g} s is none: give seconds, such as 0.32.")
    refused = f"{model.name} takes no prompt and no hotwords while one speaks: leave them out."
    if policy is None and DelayedRecogniser.serves(bundle):
        if asked_for:
            raise ConfigError(refused)
        return DelayedRecogniser(bundle, delay)
    streaming = bundle.traits.streaming
    recognisers: list[type[ChunkedRecogniser]] = [TransducerRecogniser, CTCRecogniser]
    if policy == "ctc":
        recognisers = [CTCHeadRecogniser, CTCRecogniser]
    serving = next((recogniser for recogniser in recognisers if recogniser.serves(bundle)), None)
    if policy == "ctc" and (streaming is None or serving is None):
        raise ConfigError(f"{model.name} has no CTC head on an encoder that hears chunk by chunk.")
    if policy == "agreement" or streaming is None or serving is None:
        least, most = AgreementRecogniser.delays
        if delay is not None and not least <= delay <= most:
            raise ConfigError(
                f"LocalAgreement asks {model.name} each {least:g} to {most:g} s, and {delay:g} s is none."
            )
        places = bundle.family.decoding_options()
        as_context = "context" in places and "prompt" not in places
        asked = DecodingOptions(
            language=options.language,
            words=model.knows_times,
            context=options.prompt if as_context else None,
            prompt=None if as_context else options.prompt,
            hotwords=options.hotwords,
        )
        return AgreementRecogniser(Transcriber(bundle, task, asked, model.name), delay or DELAY)
    if asked_for:
        raise ConfigError(refused)
    chunk = streaming.nearest(streaming.usual if delay is None else delay)
    if delay is not None and abs(delay - chunk) > TINY:
        raise ConfigError(f"{model.name} was trained with chunks of {streaming.known} s, and {delay:g} s is none.")
    return serving(bundle, chunk, streaming.reach[1])
