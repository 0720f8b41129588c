"""`quality`: signal-to-noise ratio, bandwidth, clipping and level of segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from stentor.inference.segments.base import SPEECH_RATE, Limit, Segment, Stage

if TYPE_CHECKING:
    from stentor.inference.recording import Recording


class QualityStage(Stage):
    """Measure the audio quality of segments (`snr`, `bandwidth`, `clipped`, `level`) and drop bad ones."""

    type: Literal["quality"] = "quality"
    min_snr: float | None = 10.0
    """Minimum signal-to-noise ratio in dB, the lower of two estimates: within 3 dB of the truth in steady noise, while
    varying noise is partly taken for speech. Recognition can be trained from 10 dB, synthesis needs 25. Null: no
    limit."""
    min_bandwidth: float | None = 4500.0
    """Minimum effective bandwidth in Hz, at most half the file's sample rate. Telephone speech ends at 4000 Hz and is
    measured as 3900, even after resampling. Null: no limit."""
    max_clipped: float | None = 0.001
    """Maximum share of samples at full scale. Null: no limit."""
    min_level: float | None = -45.0
    """Minimum level of the loud parts in dBFS. Null: no limit."""

    limits: ClassVar = (
        Limit("level", "min_level", "quiet"),
        Limit("clipped", "max_clipped", "clipped", upper=True),
        Limit("bandwidth", "min_bandwidth", "narrow"),
        Limit("snr", "min_snr", "noisy"),
    )
    reasons: ClassVar = {
        "quiet": "even the loud parts are quiet",
        "clipped": "samples are at full scale",
        "narrow": "a telephone's bandwidth, or little more",
        "noisy": "too much noise",
    }

    def measure(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment]:
        from stentor.audio.quality import bandwidth, snr
        from stentor.data.signal_stats import measure_audio

        for segment in segments:
            audio = segment.audio(recording, recording.rate)
            stats = measure_audio(audio, recording.rate)
            yield segment.measured(
                snr=round(snr(segment.audio(recording), SPEECH_RATE), 1),
                bandwidth=round(bandwidth(audio, recording.rate)),
                clipped=round(stats.clipped, 6),
                level=round(stats.level, 1),
            )
