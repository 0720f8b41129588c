"""Streams: models that answer while one speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.errors import ConfigError

if TYPE_CHECKING:
    from stentor.inference.load import Model
    from stentor.inference.stream.base import Recogniser

DELAY = {"chunks": 0.32, "agreement": 1.0}
"""Seconds, where nothing else is asked for."""


def open_recogniser(
    model: Model, language: str | None = None, delay: float | None = None, agreement: bool = False
) -> Recogniser:
    """What answers while one speaks: the model itself where it was trained to hear chunk by chunk, for others
    LocalAgreement, and for all with `agreement`.

    `delay`: seconds of a chunk; with LocalAgreement from one answer to the next. Raises ConfigError for a model of
    another task, and for a delay that it was not trained with.
    """
    from stentor.inference.stream.agreement import AgreementRecogniser
    from stentor.inference.stream.ctc import CTCRecogniser
    from stentor.inference.transcribe import Transcriber

    task, bundle = model.for_transcription(), model.bundle
    if delay is not None and delay <= 0:
        raise ConfigError(f"A delay of {delay:g} s is none: give seconds, such as 0.32.")
    streaming = getattr(bundle.processor, "streaming", None)
    chunked = [] if agreement or streaming is None else [r for r in (CTCRecogniser,) if r.serves(bundle)]
    if not chunked or streaming is None:
        transcriber = Transcriber(bundle, task, language=language, words=model.knows_times, model=model.name)
        return AgreementRecogniser(transcriber, delay or DELAY["agreement"])
    least, most = streaming.chunk
    chunk = min(max(DELAY["chunks"], least), most) if delay is None else delay
    if not least <= chunk <= most:
        raise ConfigError(f"{model.name} was trained with chunks of {least:g} to {most:g} s, and {chunk:g} s is none.")
    return chunked[0](bundle, chunk, streaming.reach[1])
