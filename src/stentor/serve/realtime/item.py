"""Items: what is said in an utterance, in events that come while it is said."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stentor.errors import ConfigError
from stentor.inference.stream.base import Event, Hypothesis
from stentor.inference.stream.recognisers import StreamOptions
from stentor.inference.stream.stream import Stream
from stentor.serve.errors import ApiError, api_error, report
from stentor.serve.realtime.settings import DELAYS, LOGPROBS, Settings
from stentor.serve.registry import ServedModel
from stentor.serve.scheduler import QueuedJob, Worker
from stentor.serve.service import Service
from stentor.text.written_words import spaced

DELTA = "conversation.item.input_audio_transcription.delta"
COMPLETED = "conversation.item.input_audio_transcription.completed"
FAILED = "conversation.item.input_audio_transcription.failed"

FIELDS = {"prompt": "prompt", "hotwords": "keywords"}
SILENCE = 0.8
"""Seconds after which a phrase has ended, where a client says itself when an item has."""

Send = Callable[..., Awaitable[None]]
"""Sends an event: its type, and its other fields by their names."""


@dataclass
class Hearing:
    """Transcription settings of a session's items."""

    service: Service
    served: ServedModel
    worker: Worker
    options: StreamOptions
    settings: Settings
    warnings: Sequence[str] = ()
    """Sentences about settings that have no effect with this model."""

    @classmethod
    def of(cls, service: Service, settings: Settings) -> Hearing | None:
        """As the settings ask for it; None where they have no model. Raises ApiError for what the model cannot do."""
        asked = settings.input.transcription
        if asked is None or not asked.model:
            return None
        served = service.model(asked.model, "transcribe")
        options = StreamOptions(
            language=asked.language or None,
            prompt=asked.prompt or None,
            hotwords=tuple(asked.keywords),
            detector=service.detector,
        )
        worker, delay, warnings = secrets.choice(served.workers), asked.delay, []
        for hints in ((), ("prompt",), ("prompt", "hotwords")):
            left_out: dict[str, Any] = dict.fromkeys(hints)
            with suppress(ConfigError):
                worker.recogniser(options._replace(**left_out))
                unused = [name for name in hints if options._asdict()[name]]
                warnings = [f"This model takes no {FIELDS[name]} in streaming: it has no effect." for name in unused]
                options = options._replace(**left_out)
                break
        try:
            usual = worker.recogniser(options)
            if isinstance(delay, str):
                delay = usual.nearest(usual.delay * DELAYS[delay])
            options = options._replace(delay=delay)
            worker.recogniser(options)
        except ConfigError as error:
            raise ApiError(400, str(error), "session.audio.input.transcription") from None
        return cls(service, served, worker, options, settings, warnings)

    async def advance(self, hypothesis: Hypothesis) -> Exception | None:
        """One step, beside those of other sessions; why there is none."""
        job = QueuedJob(
            [hypothesis.seconds],
            ("stream", self.options),
            lambda i: hypothesis,
            partial(_advance, self.options),
            device=self.worker.device,
        )
        seconds = self.service.limits.time(hypothesis.seconds)
        try:
            async with aclosing(self.service.results(self.served, job, seconds)) as batches:
                async for batch in batches:
                    return batch[0][1]
        except Exception as error:
            return error
        return None


def _advance(options: StreamOptions, worker: Worker, hypotheses: list[Any]) -> Sequence[Exception | None]:
    """A step that fails is not tried again, as other work is: of its audio something may be gone."""
    try:
        worker.recogniser(options).advance(hypotheses)
    except Exception as error:
        return [error] * len(hypotheses)
    return [None] * len(hypotheses)


class Item:
    """An utterance while it is said."""

    def __init__(self, hearing: Hearing, begin: float, send: Send):
        """`begin`: seconds of the session before it."""
        self.id, audio = f"item_{secrets.token_hex(12)}", hearing.settings.input
        self.hearing, self.rate, self.begin, self.seconds = hearing, audio.format.rate or 0, begin, 0.0
        silence = SILENCE if audio.turn_detection is None else None
        self.stream = Stream(hearing.worker.recogniser(hearing.options), self.rate, silence)
        self._send = partial(send, item_id=self.id, content_index=0)
        self._words: list[Event] = []
        self._text = ""
        self._failed, self._partials = False, audio.transcription is not None and audio.transcription.partials

    async def hear(self, samples: np.ndarray) -> None:
        """More of it: float32 [samples]."""
        self.seconds += len(samples) / self.rate
        self.hearing.service.metrics.audio.labels(self.hearing.served.name).inc(len(samples) / self.rate)
        await self._follow(self.stream.steps(samples))

    async def end(self) -> None:
        """There is no more of it."""
        await self._follow(self.stream.last_steps())
        if not self._failed:
            usage = {"type": "duration", "seconds": round(self.seconds, 3)}
            await self._send(COMPLETED, transcript=self._text, usage=usage, **self._details(self._words))

    async def _follow(self, steps: Iterable[Event | Hypothesis]) -> None:
        if self._failed:
            return
        for step in steps:
            if not isinstance(step, Hypothesis):
                await self._tell(step)
            elif (error := await self.hearing.advance(step)) is not None:
                self._failed = True
                report(error)
                await self._send(FAILED, error=api_error(error).body()["error"])
                return

    async def _tell(self, event: Event) -> None:
        if event["type"] == "word":
            word = {name: event[name] for name in ("word", "start", "end", "confidence")}
            if word["start"] is not None:
                word |= {name: round(word[name] + self.begin, 3) for name in ("start", "end")}
            delta = spaced(self._text, event["word"])
            self._text += delta
            self._words.append(word)
            await self._send(DELTA, delta=delta, **self._details([word]))
        elif event["type"] == "partial" and self._partials:
            await self._send(DELTA, delta="", partial=event["text"])

    def _details(self, words: list[Event]) -> dict[str, Any]:
        """Times of words; and log-probabilities, where they are asked for and known."""
        known = [word for word in words if word["confidence"]] if LOGPROBS in self.hearing.settings.include else []
        logprobs = [
            {"token": w["word"], "logprob": math.log(w["confidence"]), "bytes": list(w["word"].encode())} for w in known
        ]
        return {"words": words, **({"logprobs": logprobs} if logprobs else {})}
