"""Choice of the streaming recogniser for a model."""

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
"""Default seconds from one answer of LocalAgreement to the next."""


class StreamOptions(NamedTuple):
    """Options of streaming; streams of one model with equal options can be processed together."""

    language: str | None = None
    delay: float | None = None
    """Seconds of a chunk, the delay of a model on the frame grid, or seconds between answers of LocalAgreement."""
    policy: Literal["agreement", "ctc"] | None = None
    """LocalAgreement, or only the CTC head. None: as the model was trained."""
    prompt: str | None = None
    """Prompt as in `DecodingOptions`, only with LocalAgreement."""
    hotwords: tuple[str, ...] = ()
    """Hotwords, only with LocalAgreement."""
    detector: Detector | None = None
    """Speech detector. None: by energy."""


class TranscribingModel(Protocol):
    """Interface that streaming needs of a loaded model (`stentor.inference.model.Model`)."""

    name: str
    bundle: Bundle

    @property
    def knows_times(self) -> bool:
        """Whether its words have times."""

    def for_transcription(self) -> Transcribe:
        """Return the task `transcribe`. Raises ConfigError if the model has another task."""


def open_recogniser(model: TranscribingModel, options: StreamOptions) -> Recogniser:
    """Return the streaming recogniser of a model: its own if it was trained with chunks or with a delay, otherwise
    LocalAgreement. Raises ConfigError for a model of another task and for options that it does not support, such as a
    delay that it was not trained with."""
    language = model.bundle.traits.spoken_language(options.language, model.name)
    recogniser = _recogniser(model, options._replace(language=language))
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
        raise ConfigError(f"The delay must be above 0 s, such as 0.32, not {delay:g}.")
    refused = f"{model.name} takes no prompt and no hotwords in streaming: leave them out."
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
        raise ConfigError(f"{model.name} has no CTC head on a streaming encoder.")
    if policy == "agreement" or streaming is None or serving is None:
        least, most = AgreementRecogniser.delays
        if delay is not None and not least <= delay <= most:
            raise ConfigError(
                f"{model.name} streams with LocalAgreement, whose delay is {least:g} to {most:g} s, not {delay:g} s."
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
        raise ConfigError(f"{model.name} was trained with chunks of {streaming.known} s, not {delay:g} s.")
    return serving(bundle, chunk, streaming.reach[1])
