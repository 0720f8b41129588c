"""Instance logs: words of streams with the times at which they came, as SimulEval writes and omnisteval reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stentor.data.batch import Prediction
from stentor.metrics.stream import StreamedRecording


def write_instances(path: Path, predictions: Sequence[Prediction], recordings: Sequence[StreamedRecording]) -> None:
    """A JSON line for each recording: `prediction` and `reference`, and in milliseconds `source_length`, `delays` (when
    each word stayed, in seconds of audio that had come) and `elapsed` (with the time of computation)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for index, (prediction, recording) in enumerate(zip(predictions, recordings, strict=True)):
            # Readers split at spaces, which a word may hold.
            words = [
                (word, event) for event in recording.events if event["type"] == "word" for word in event["word"].split()
            ]
            row = {
                "index": index,
                "source": prediction.id,
                "prediction": " ".join(word for word, _ in words),
                "reference": prediction.reference["text"],
                "delays": [round(1000 * event["time"], 1) for _, event in words],
                "elapsed": [round(1000 * event["done"], 1) for _, event in words],
                "source_length": round(1000 * recording.seconds, 1),
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
