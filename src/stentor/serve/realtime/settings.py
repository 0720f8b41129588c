"""Settings of a session, by the names that OpenAI's Realtime interface has for them."""

from __future__ import annotations

import io
from typing import Annotated, Any, Literal, Self

import numpy as np
import soundfile
from pydantic import Field, model_validator

from stentor.serve.errors import ApiError
from stentor.serve.foreign import own_session
from stentor.serve.openapi import Fields, ModelName
from stentor.text.languages import LanguageName

G711 = {"audio/pcmu": "ULAW", "audio/pcma": "ALAW"}
G711_RATE = 8000
DELAYS = {"minimal": 0.5, "low": 1.0, "medium": 2.0, "high": 4.0, "xhigh": 8.0}
"""Times a model's usual delay."""
LOGPROBS = "item.input_audio_transcription.logprobs"


class AudioFormat(Fields):
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: int | None = Field(None, ge=8000, le=48000)
    """Hz of PCM; OpenAI's is 24000 always."""

    @model_validator(mode="after")
    def _rate(self) -> AudioFormat:
        usual = 24000 if self.type == "audio/pcm" else G711_RATE
        if usual == G711_RATE and self.rate not in (None, G711_RATE):
            raise ValueError("G.711 has 8000 samples a second")
        self.rate = self.rate or usual
        return self

    def samples(self, data: bytes) -> np.ndarray:
        """Float32 [samples]. Raises ValueError for half a sample."""
        if self.type == "audio/pcm":
            return np.frombuffer(data, "<i2").astype(np.float32) / 2**15
        kind = {"format": "RAW", "subtype": G711[self.type], "samplerate": G711_RATE, "channels": 1}
        return soundfile.read(io.BytesIO(data), dtype="float32", **kind)[0]


class TurnDetection(Fields):
    type: Literal["server_vad"] = "server_vad"
    threshold: float = Field(0.5, gt=0, le=1)
    """Threshold of the level above the noise, 12 dB times this; with Silero of the probability of speech."""
    prefix_padding_ms: int = Field(300, ge=0, le=10_000)
    silence_duration_ms: int = Field(500, ge=100, le=60_000)
    create_response: bool | None = Field(None, exclude=True)
    interrupt_response: bool | None = Field(None, exclude=True)
    idle_timeout_ms: int | None = Field(None, exclude=True)


Language = Annotated[Literal["auto"] | LanguageName, Field(max_length=100)]


class Transcription(Fields):
    model: ModelName | None = None
    language: Language | None = None
    languages: list[Language] = Field([], max_length=1)
    """One, where `language` is not there."""
    prompt: str | None = Field(None, max_length=4096)
    keywords: list[Annotated[str, Field(max_length=100)]] = Field([], max_length=1000)
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | float | None = None
    """Also in seconds."""
    partials: bool = False
    """Send what may still change, as `partial` of deltas that are empty."""

    @model_validator(mode="after")
    def _one_language(self) -> Self:
        """Here, so that an update with either takes the place of both."""
        if self.languages and not self.language:
            self.language = self.languages[0]
        return self


class NoiseReduction(Fields):
    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class AudioInput(Fields):
    format: AudioFormat = AudioFormat(type="audio/pcm")
    transcription: Transcription | None = None
    turn_detection: TurnDetection | None = TurnDetection()
    noise_reduction: NoiseReduction | None = Field(None, exclude=True)
    """Has no effect."""


class Audio(Fields):
    input: AudioInput = AudioInput()


class Settings(Fields):
    """Settings of a session for its audio."""

    type: Literal["transcription"] = "transcription"
    audio: Audio = Audio()
    include: list[Literal["item.input_audio_transcription.logprobs"]] = []

    @classmethod
    def read(cls, sent: Any, place: str = "session") -> Settings:
        """Those that a client sends. Raises ApiError."""
        if isinstance(sent, dict) and sent.get("type", "transcription") != "transcription":
            raise ApiError(400, "This server transcribes: sessions have the type transcription.", "session.type")
        return super().read(own_session(sent), place)

    @property
    def input(self) -> AudioInput:
        return self.audio.input

    def updated(self, update: Settings) -> Settings:
        """These, but for what an update sets."""
        changes = {name: value for name, value in update.input if name in update.input.model_fields_set}
        new, old = changes.get("transcription"), self.input.transcription
        if new is not None and old is not None:
            changes["transcription"] = old.model_copy(update={k: v for k, v in new if k in new.model_fields_set})
        include = update.include if "include" in update.model_fields_set else self.include
        return Settings(audio=Audio(input=self.input.model_copy(update=changes)), include=include)

    def shown(self) -> dict[str, Any]:
        """As events have them."""
        shown = self.model_dump()
        if (transcription := shown["audio"]["input"]["transcription"]) is not None:
            shown["audio"]["input"]["transcription"] = {k: v for k, v in transcription.items() if v}
        shown["audio"]["input"]["noise_reduction"] = None
        return {"object": "realtime.transcription_session", **shown}
