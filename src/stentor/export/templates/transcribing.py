"""Transcription of recordings with ONNX graphs: windows between pauses, each decoded by the kind of model."""

import argparse
import json
import re
from pathlib import Path

import numpy as np
import onnxruntime

from stentor.export.templates.audio import RATE, opened, read
from stentor.export.templates.recordings import LONGEST, SILENCE, windows, with_room


class Transcriber:
    """The graphs that onnx_config.json names. A kind adds `decode(clip, **options)`: the text of a clip and its words
    with their times in seconds, where they are known: {"word", "start", "end"}."""

    options: dict[str, str] = {}  # of the command line: help by name

    def __init__(self, folder):
        self.folder, self.sessions = Path(folder), {}
        self.facts = opened(self.folder / "onnx_config.json", lambda path: json.loads(path.read_text("utf-8")))
        trained = self.facts["speech"] or {}  # what the training clips were like, where it is known
        self.limit, self.room, pause = self.facts["max_seconds"], trained.get("room"), trained.get("pause")
        room, longest = self.room or 0.0, min(LONGEST, self.limit or LONGEST, trained.get("longest") or LONGEST)
        self.longest = longest - 2 * room if longest > 4 * room else longest
        self.silence = max(room, pause) if pause is not None and (self.room is not None or pause > SILENCE) else None

    def run(self, graph, **inputs):
        """Outputs of a graph by name; of the inputs those that it has are given."""
        facts = self.facts["graphs"][graph]
        path = self.folder / facts["file"]
        session = self.sessions[graph] = self.sessions.get(graph) or opened(path, onnxruntime.InferenceSession)
        fed = {node.name: inputs[node.name] for node in session.get_inputs()}
        return dict(zip(facts["outputs"], session.run(facts["outputs"], fed)))

    def recognise(self, clip, **options):
        """As `decode`, of a clip that gets as much quiet around its speech as in training."""
        roomy, earlier = with_room(clip, self.room, self.limit)
        text, words = self.decode(roomy.astype(np.float32), **options)
        for word in words:
            word |= {key: min(max(word[key] - earlier, 0.0), len(clip) / RATE) for key in ("start", "end")}
        return text, words

    def transcribe(self, audio, **options):
        """Segments {"start", "end", "text", "words"} (seconds) of audio, float32 [samples] at 16 kHz."""
        segments = []
        for first, last in windows(audio, self.longest, self.room, self.silence):
            text, words = self.recognise(audio[first:last], **options)
            words = [word | {key: word[key] + first / RATE for key in ("start", "end")} for word in words]
            segments += [{"start": first / RATE, "end": last / RATE, "text": text, "words": words}] if text else []
        return segments


def timed_words(pieces, times):
    """Words of a text in pieces that have (start, end) in seconds."""
    words, fresh = [], True
    for piece, (start, end) in zip(pieces, times):
        for part in filter(None, re.split(r"(\s+)", piece)):
            if part.isspace() or fresh:
                fresh = part.isspace()
                words += [] if fresh else [{"word": part, "start": start, "end": end}]
            else:
                words[-1] |= {"word": words[-1]["word"] + part, "end": end}
    return words


def main(recognizer):
    model, parser = recognizer(Path(__file__).parent), argparse.ArgumentParser(description="Transcribe audio files.")
    there = lambda name: name if Path(name).is_file() else parser.error(f"there is no file {name}")  # noqa: E731
    parser.add_argument("files", nargs="+", type=there)
    parser.add_argument("--words", action="store_true", help="print each word with its times, not each segment")
    for name, text in model.options.items():
        parser.add_argument(name, help=text)
    options = vars(parser.parse_args())
    files, by_word = options.pop("files"), options.pop("words")
    for file in files:
        for segment in model.transcribe(read(file), **options):
            for row in segment["words"] if by_word else [segment]:
                print(f"{file} {row['start']:8.2f} {row['end']:8.2f}  {row['word' if by_word else 'text']}")
