"""`duplicates`: keep the same sound only once, whatever its file, level or encoding."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from stentor.inference.segments.base import Reject, Segment, SetStage

if TYPE_CHECKING:
    from stentor.inference.recording import Recording


class DuplicatesStage(SetStage):
    """Drop duplicate segments: equal samples, or the same sound by its fingerprint (re-encoded, louder, or cut
    differently). The first one is kept, and `duplicate_of` of the others names it. Put this stage before stages with
    large models, so that they do not process duplicates."""

    type: Literal["duplicates"] = "duplicates"
    min_shared: float | None = Field(0.1, gt=0, le=1)
    """Minimum share of the shorter one's landmarks that both have at one offset. Measured on LibriSpeech: unrelated
    speech under 0.02; MP3 at another level and offset from 0.2, white noise of 20 dB from 0.15. Null: equal samples."""

    reasons: ClassVar = {
        "same_samples": "decodes to the same samples",
        "same_sound": "the same sound by its fingerprint",
    }

    def process(self, recording: Recording, segments: Sequence[Segment]) -> Iterator[Segment | Reject]:
        import numpy as np

        from stentor.audio.fingerprint import fingerprint

        for segment in segments:
            audio = segment.audio(recording, recording.rate)
            samples = np.rint(audio * 32768).astype("<i4").tobytes()
            digest = hashlib.blake2b(samples, digest_size=16).hexdigest()
            prints = fingerprint(audio, recording.rate).tobytes() if self.min_shared is not None else b""
            yield segment.measured(digest=digest, fingerprint=base64.b64encode(prints).decode())

    def select(self, segments: Sequence[Segment]) -> list[Segment | Reject]:
        from stentor.audio.fingerprint import Fingerprint, shared

        first: dict[str, int] = {}
        same = [first.setdefault(s.measures["digest"], i) for i, s in enumerate(segments)]
        unique = [i for i, j in enumerate(same) if i == j]
        prints = [Fingerprint.frombytes(base64.b64decode(segments[i].measures["fingerprint"])) for i in unique]
        near: dict[int, tuple[int, float]] = {}  # from a dropped segment to an earlier one that is kept
        for later, earlier, share in shared(prints, self.min_shared or 1.0):
            if unique[earlier] not in near and unique[later] not in near:
                near[unique[later]] = unique[earlier], share
        results: list[Segment | Reject] = []
        for i, segment in enumerate(segments):
            plain = {k: v for k, v in segment.measures.items() if k not in ("digest", "fingerprint")}
            kept = Segment(segment.start, segment.end, plain)
            original, share = near.get(same[i], (same[i], 1.0))
            if original == i:
                results.append(kept)
                continue
            dropped = kept.measured(duplicate_of=segments[original].measures["id"])
            near_by = dropped.drop("same_sound", round(share, 3), self.min_shared)
            results.append(near_by if same[i] == i else dropped.drop("same_samples"))
        return results
