"""Synthesis of texts of any length, piece by piece, in the voice of a recording, a described one or the default one."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.data.speaking_rate import SpeakingRate, weight
from stentor.inference.speak.postprocess import LEVEL, Joiner
from stentor.inference.speak.utterance import Speech, Utterance, flat, spelled
from stentor.inference.speak.voice import Voice
from stentor.models.base import Bundle
from stentor.tasks.speak.chunks import MOST, chunks
from stentor.tasks.speak.generation import Generation

RAMP = (3.0, 6.0, 12.0)
"""Seconds of the first pieces of a stream: speech starts early, and each piece is synthesized while one is played."""
TOGETHER = 8
"""Number of pieces of a text synthesized and kept at a time when the first one is not urgent."""
PACE_TEXT = "Nice to meet you."
"""Text that takes one second if the speaking rate is unknown."""
SHORT = 2.0
"""Seconds below which an estimate is stretched, because short phrases are spoken more slowly."""


@dataclass(eq=False)
class SpeechPiece:
    """A part of the text that is synthesized at once."""

    number: int
    text: str
    end: str
    """End of its text, with the line end, which determines the pause after it."""
    frames: int
    codes: np.ndarray | None = None


class SpeechPlan:
    """An utterance in progress. Without a voice, its first piece is the reference of the others (see `follows`)."""

    pieces: list[SpeechPiece]

    def __init__(self, utterance: Utterance, bundle: Bundle, generation: Generation, finish: bool, early: bool = False):
        processor: Any = bundle.processor
        self.utterance, self.processor, self.codec = utterance, processor, processor.codec
        voice = utterance.voice
        self.reference: tuple[np.ndarray, str] | None = None  # codec tokens, their text
        level = LEVEL
        if isinstance(voice, Voice):
            self.reference = (voice.codes, flat(voice.text, bundle))
            level = min(LEVEL, voice.rms or LEVEL)
        self.follows = self.reference is None and utterance.follows and bundle.traits.clones
        self.seed = generation.seed if utterance.seed is None else utterance.seed
        self.early, self.pieces = early, _plan(utterance, self.reference, bundle, generation, early)
        self.joiner = Joiner(self.codec.sample_rate, utterance.duration is None, level) if finish else None

    def prompt(self, piece: SpeechPiece, denoise: bool) -> Any:
        first = self.pieces[0]
        reference = (first.codes, first.text) if self.follows and piece.number else self.reference
        style = {"language": self.utterance.language, "instruct": self.utterance.instruct}
        denoise = denoise and self.reference is not None
        return self.processor.utterance(piece.text, reference=reference, frames=piece.frames, denoise=denoise, **style)

    def groups(self) -> list[list[SpeechPiece]]:
        """Return its pieces in groups, in the order of synthesis; the pieces of a group do not need each other. With
        `early`, each piece is a group so that it does not wait for the next one."""
        if self.early:
            return [[piece] for piece in self.pieces]
        first = self.pieces[: 1 if self.follows else None]
        return [group for group in (first, self.pieces[len(first) :]) if group]

    def audio(self, piece: SpeechPiece, codec: Any = None) -> np.ndarray:
        """Return the audio that is complete with this piece, in order. `codec`: of another copy of the model."""
        (audio,) = (codec or self.codec).decode([piece.codes])
        return audio if self.joiner is None else self.joiner.add(audio, piece.end, piece is self.pieces[-1])


class Synthesizer:
    """A speech synthesis model with the settings shared by its utterances."""

    def __init__(
        self, bundle: Bundle, generation: Generation, denoise: bool = False, options: Mapping[str, Any] | None = None
    ):
        """`denoise`: generate clean speech from noisy voices, for models that have learned it. `options`: keyword
        arguments of the model's `speak`."""
        self.bundle, self.generation, self.denoise = bundle, generation, denoise
        self.options = dict(options or {})

    def learned(self, utterance: Utterance) -> Utterance:
        """Return the utterance without options that the model has not learned."""
        return utterance

    def plan(self, utterance: Utterance, finish: bool = True, early: bool = False) -> SpeechPlan:
        """Return the plan of `stream`, for callers that call `synthesize` themselves."""
        return SpeechPlan(self.learned(utterance), self.bundle, self.generation, finish, early)

    def speak(self, utterances: Sequence[Utterance], finish: bool = True) -> Iterator[Speech]:
        """Yield the speech of each utterance, in order.

        Long texts are synthesized in pieces (see `stentor.tasks.speak.chunks`); without a voice, the first piece is the
        reference of the others. An utterance does not depend on the others: it has its own seed, and its pieces have
        consecutive seeds. With `finish`, silence at the ends of pieces is trimmed to 0.1 s and faded, long silence is
        shortened (unless a duration was given), and each piece gets the level of normal speech, or of the reference if
        it is quieter. Without `finish`, the audio is exactly what the codec returns.
        """
        jobs = [self.plan(utterance, finish) for utterance in utterances]
        # Pieces that do not need the codes of other pieces are synthesized together.
        self.synthesize([(job, piece) for job in jobs for group in job.groups()[:1] for piece in group])
        self.synthesize([(job, piece) for job in jobs for piece in job.pieces if piece.codes is None])
        for job in jobs:
            audio = np.concatenate([job.audio(piece) for piece in job.pieces])
            codes = np.concatenate([piece.codes for piece in job.pieces], axis=1)  # type: ignore[misc]  # all are spoken
            yield Speech(audio, job.codec.sample_rate, codes, [piece.text for piece in job.pieces], job.seed)

    def stream(self, utterance: Utterance, finish: bool = True, early: bool = True) -> Iterator[Speech]:
        """Yield one utterance piece by piece. The concatenated audio equals that of `speak` for the same pieces, sample
        by sample. At most `TOGETHER` pieces are in memory.

        With `early`, the first pieces are short and each is yielded when ready; otherwise they are those of `speak`.
        """
        job = self.plan(utterance, finish, early)
        size = 1 if early else TOGETHER
        for start in [0, *range(1, len(job.pieces), size)]:
            group = job.pieces[start : start + size if start else 1]
            self.synthesize([(job, piece) for piece in group])
            for piece in group:
                assert piece.codes is not None
                yield Speech(job.audio(piece), job.codec.sample_rate, piece.codes, [piece.text], job.seed)
                if piece.number:
                    piece.codes = None

    def synthesize(self, pieces: Sequence[tuple[SpeechPlan, SpeechPiece]]) -> None:
        """Generate the codes of pieces of any plans together; none depends on the others."""
        if not pieces:
            return
        model: Any = self.bundle.model
        prompts = [job.prompt(piece, self.denoise) for job, piece in pieces]
        seeds = [job.seed + piece.number for job, piece in pieces]
        made = model.speak(prompts, seeds=seeds, **{**self.generation.arguments(), **self.options})
        for (_, piece), codes in zip(pieces, made):
            piece.codes = codes


def _plan(
    utterance: Utterance, reference: tuple[np.ndarray, str] | None, bundle: Bundle, generation: Generation, early: bool
) -> list[SpeechPiece]:
    processor: Any = bundle.processor
    frame_rate, duration = processor.codec.frame_rate, utterance.duration
    reference_text, reference_seconds = None, None
    if reference is not None:
        reference_text, reference_seconds = reference[1], reference[0].shape[1] / frame_rate

    def seconds(part: str) -> float:
        return estimate(part, reference_text, reference_seconds, utterance.speed, processor.pace)

    # Keep the case of the text: capitals show where sentences begin.
    unknown = spelled(utterance.text, bundle)[1]
    text = "".join(c for c in utterance.text if c not in unknown)
    ramp = [length for length in RAMP if early and length < generation.chunk_duration]
    threshold = min([generation.chunk_threshold, *(MOST * length for length in ramp)])
    total = seconds if duration is None else lambda _: duration
    parts = [(flat(part, bundle), part) for part in chunks(text, total, threshold, generation.chunk_duration, ramp)]
    parts = [(text, end) for text, end in parts if text]
    if duration is None:
        most = MOST * generation.chunk_duration if len(parts) > 1 else float("inf")
        frames = [frames_of(min(seconds(text), most), frame_rate) for text, _ in parts]
    else:
        # Divide the whole duration by weight.
        weights = [weight(text) for text, _ in parts]
        shares = list(itertools.accumulate(weights if any(weights) else [1.0] * len(parts), initial=0.0))
        ends = [int(duration * frame_rate * share / shares[-1] + 1e-9) for share in shares]
        frames = [max(1, end - start) for start, end in itertools.pairwise(ends)]
    return [SpeechPiece(i, text, end[-8:], count) for i, ((text, end), count) in enumerate(zip(parts, frames))]


def estimate(
    text: str,
    reference_text: str | None = None,
    reference_seconds: float | None = None,
    speed: float = 1.0,
    pace: SpeakingRate | None = None,
) -> float:
    """Estimate the seconds that a text takes from the weights of its characters, as OmniVoice does (arXiv 2604.00688).

    The speaking rate is that of the reference if given, otherwise `pace`, that of the training records. Without `pace`,
    estimates d below 2 s become 2 (d / 2) ** (1/3) s. The result is divided by `speed`. A reference text without any
    weight is ignored.
    """
    usual = pace or SpeakingRate(0.0, 1.0 / weight(PACE_TEXT))
    seconds = usual.seconds(text)
    if reference_text and reference_seconds and weight(reference_text):
        seconds *= reference_seconds / usual.seconds(reference_text)
    if pace is None and seconds < SHORT:
        seconds = SHORT * (seconds / SHORT) ** (1 / 3)
    return seconds / speed


def frames_of(seconds: float, frame_rate: float) -> int:
    """Return the whole frames of a duration, at least one, rounded down as OmniVoice does."""
    return max(1, int(seconds * frame_rate + 1e-9))
