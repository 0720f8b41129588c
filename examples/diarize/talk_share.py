"""A callback of one's own in one file: how much of the audio the model hears talk in, beside how much there is."""

from __future__ import annotations

from typing import Literal

from stentor.extend import Callback


class TalkShare(Callback):
    """Logs `talk_share/SET` and `talk_share/SET/reference` after each evaluation."""

    type: Literal["talk_share"] = "talk_share"
    name: str = "talk"
    """Segments that are counted."""

    def on_evaluate(self, trainer, name, scores, predictions):
        seconds = sum(p.seconds for p in predictions)
        output, reference = (
            sum(s["end"] - s["start"] for p in predictions for s in segments(p) if s["speaker"] == self.name)
            for segments in (
                lambda p: p.output["segments"],
                lambda p: trainer.task.labels.reference_segments(p.reference["segments"]),
            )
        )
        trainer.log({f"talk_share/{name}": output / seconds, f"talk_share/{name}/reference": reference / seconds})
