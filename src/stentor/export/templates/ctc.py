"""Transcription with the ONNX graphs beside this file; needs numpy, onnxruntime, tokenizers and soundfile alone:

    python transcribe.py speech.wav talk.flac --words

As `stentor transcribe` does: the likeliest class of each frame, on windows between pauses, with the times of words.
"""

from itertools import pairwise

import numpy as np
from tokenizers import Tokenizer

from stentor.export.templates.audio import opened
from stentor.export.templates.transcribing import Transcriber, main, timed_words


class Recognizer(Transcriber):
    def decode(self, clip):
        given = self.run("features", audio=clip[None])
        scored = self.run("encoder", audio_signal=given["features"], length=given["lengths"])
        path = scored["logprobs"][0, : scored["lengths"][0]].argmax(1)
        first = np.flatnonzero(np.diff(path, prepend=-1))  # of each run of one class
        after = np.append(first[1:], len(path))
        said = path[first] != self.facts["blank"]
        pieces = self.pieces(path[first][said].tolist())
        times = self.facts["frame_seconds"] * np.stack([first, after], 1)[said]
        return "".join(pieces).strip(), timed_words(pieces, times.tolist())

    def pieces(self, classes):
        """Text that each class adds."""
        if self.facts["units"] is not None:
            return [self.facts["units"][c] for c in classes]
        tokenizer = opened(str(self.folder / "tokenizer.json"), Tokenizer.from_file)
        texts = [tokenizer.decode(classes[:n]) for n in range(len(classes) + 1)]
        return [text[len(before) :] for before, text in pairwise(texts)]


if __name__ == "__main__":
    main(Recognizer)
