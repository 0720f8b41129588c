"""Word times: agreement of each method with references, all on the same files in one run.

    python benchmarks/word_times.py --ctc runs/NAME [--aligner runs/NAME] [--whisper FOLDER] [--data FOLDER] [--limit N]

Data: `words/` (word times checked by people) and the dev part of `librispeech/` (silver times by PocketSphinx;
speakers that are not in the train part). Engines: `aligner`, `ctc` and `whisper` as `stentor prepare words` runs them,
and peers:

* `plain Viterbi`: the textbook's best CTC path on the emissions of the `ctc` model, words from their first to their
  last frame; `ctc` must not be worse.
* `plain DTW`: dynamic time warping over the same Whisper's attention, a word ends where the next begins.
* PocketSphinx on `words/`, where `pocketsphinx` is installed. It made the silver times, so it is not scored on them.

The Whisper model of the development data knows only the tokens of the first 1,200 merges of its tokenizer
(`--whisper-merges`); others have all of them. Its attention is 40 ms late on its training speakers (`--whisper-lag`).
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch

from stentor.config.load import parse_source
from stentor.data.cut import audio_path, language_of, text_of, words_of
from stentor.data.load_audio import load_audio
from stentor.inference.align.base import Clip
from stentor.inference.align.engines import clip_of, open_aligner
from stentor.inference.recording import ArrayRecording
from stentor.metrics.word_time import score

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
SETS = {"words": ["words/librivox.jsonl", "words/mfa.jsonl"], "librispeech dev (silver)": ["librispeech/dev.jsonl"]}
SHOWN = (
    "word_time_mean_ms",
    "word_time_median_ms",
    "within_20ms",
    "within_50ms",
    "within_100ms",
    "word_f1_50ms",
    "word_f1_100ms",
    "words_matched",
)
LAG = 0.04
"""Of the Whisper model of the development data: median error of starts in 40 utterances of its training speakers."""
Way = Callable[[list[Clip]], list[list[dict[str, Any]]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--ctc", help="CTC model: a run or export of ours, or a transformers folder")
    parser.add_argument("--aligner", help="run or export of the task words")
    parser.add_argument("--whisper", type=Path, help="default: the one of the development data")
    parser.add_argument("--whisper-merges", type=int, help="merges of its tokenizer that the Whisper model knows")
    parser.add_argument("--whisper-lag", type=float, help="seconds that its attention is late, from training data")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit", type=int, help="records of each set, for a quick look")
    parser.add_argument("--only", choices=list(SETS), help="one of the sets")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.whisper is None:
        args.whisper, args.whisper_merges = args.data / "weights" / "whisper-tiny.en-rebuilt", 1200
        args.whisper_lag = LAG if args.whisper_lag is None else args.whisper_lag
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        ways = engines(args, Path(scratch))
        print(f"{'':42}" + "".join(f"{name.removesuffix('_ms').removeprefix('word_'):>13}" for name in SHOWN))
        for title, files in SETS.items():
            if args.only in (None, title):
                rows += compare(title, [args.data / file for file in files], ways, args.limit)
    results.write("word_times", rows, models={"ctc": args.ctc, "aligner": args.aligner, "whisper": str(args.whisper)})


def engines(args: argparse.Namespace, scratch: Path) -> dict[str, Way]:
    """Name -> from clips to their words."""
    ways: dict[str, Way] = {}
    if args.aligner:
        ways["aligner"] = with_engine(open_aligner(args.aligner, "aligner"))
    if args.ctc:
        ctc = open_aligner(args.ctc, "ctc")
        ways["ctc"], ways["plain Viterbi (peer of ctc)"] = with_engine(ctc), plain_viterbi(ctc)
    if args.whisper.is_dir():
        folder = args.whisper
        if args.whisper_merges:
            folder = with_merges(folder, args.whisper_merges, scratch / "whisper")
        whisper = open_aligner(str(folder), "whisper", lag=args.whisper_lag)
        peer = open_aligner(str(folder), "whisper")
        ways["whisper"], ways["plain DTW (peer of whisper)"] = with_engine(whisper), plain_dtw(peer)
    else:
        print(f"whisper is left out: there is no folder {args.whisper}.")
    try:
        import pocketsphinx  # noqa: F401
    except ImportError:
        print("PocketSphinx is left out: it is not installed (pip install pocketsphinx).")
    else:
        ways["PocketSphinx"] = pocket_sphinx
    return ways


def compare(title: str, files: list[Path], ways: dict[str, Way], limit: int | None) -> list[dict[str, Any]]:
    cuts = [cut for file in files for cut in parse_source(str(file)).cuts() if words_of(cut)][:limit]
    if not cuts:
        print(f"{title} is left out: no records in {files[0].parent}.")
        return []
    print(f"{title}: {len(cuts)} records")
    rows = []
    for name, way in ways.items():
        if name == "PocketSphinx" and "silver" in title:
            continue
        outputs = []
        for cut in cuts:
            clip = clip_of(
                ArrayRecording(load_audio(cut), 16000, 16000, audio_path(cut)), text_of(cut), language_of(cut)
            )
            outputs += way([clip])
        scores = score([words_of(cut) for cut in cuts], outputs, languages=[language_of(cut) for cut in cuts])
        values = {key: scores[key].value for key in SHOWN}
        histogram = next(s.details["histogram"] for s in scores.values() if "histogram" in s.details)
        print(
            f"  {name:40}"
            + "".join(f"{value:13.3f}" if "_ms" not in key else f"{value:13.1f}" for key, value in values.items())
        )
        rows.append(
            {
                "data": title,
                "engine": name,
                "records": len(cuts),
                **{key: round(value, 4) for key, value in values.items()},
                "median_low_high": [scores["word_time_median_ms"].low, scores["word_time_median_ms"].high],
                "mean_low_high": [scores["word_time_mean_ms"].low, scores["word_time_mean_ms"].high],
                "start_bias_ms": histogram["start"]["median_ms"],
                "end_bias_ms": histogram["end"]["median_ms"],
            }
        )
    return rows


def with_engine(aligner: Any) -> Way:
    return lambda clips: [[word.as_dict() for word in result.words] for result in aligner.align(clips)]


def plain_viterbi(ctc: Any) -> Way:
    """The best path by the textbook, one item at a time, and its frames as they are."""
    from viterbi import plain

    from stentor.inference.align.ctc import spelling
    from stentor.models.decoding.viterbi import WILDCARD
    from stentor.tasks.words import units

    def times(clip: Clip) -> list[dict[str, Any]]:
        words = units(clip.text, clip.language)
        with torch.no_grad():
            pieces = ctc.acoustic.log_probs([clip.read(0, clip.samples)])
        labels, owner = spelling(ctc.acoustic, clip.text, words)
        known = [k for k, label in enumerate(labels) if label != WILDCARD]  # the textbook knows no wildcards
        swap = [pieces[0], [labels[k] for k in known]]
        if ctc.acoustic.blank != 0:
            order = [ctc.acoustic.blank, *(c for c in range(pieces[0].shape[1]) if c != ctc.acoustic.blank)]
            swap = [pieces[0][:, order], [order.index(labels[k]) for k in known]]
        ((states, _),) = plain([swap[0]], [swap[1]])
        frame = ctc.acoustic.hop / ctc.rate
        timed = []
        for i, word in enumerate(words):
            indices = [2 * j + 1 for j, k in enumerate(known) if owner[k] == i]
            if indices:
                at = np.flatnonzero((states >= indices[0]) & (states <= indices[-1]))
                timed.append({"word": word["word"], "start": at[0] * frame, "end": (at[-1] + 1) * frame})
        return timed

    def way(clips: list[Clip]) -> list[list[dict[str, Any]]]:
        longest = ctc.acoustic.longest or 30.0
        return [times(clip) if clip.seconds <= longest else [] for clip in clips]

    return way


def plain_dtw(whisper: Any) -> Way:
    """As OpenAI's word timestamps: no silence between words."""
    from stentor.inference.vad import Window

    def way(clips: list[Clip]) -> list[list[dict[str, Any]]]:
        outputs = []
        for clip in clips:
            with torch.no_grad():
                window = Window(0, clip.samples, 0, clip.samples)
                fits = clip.seconds <= whisper.longest
                outputs.append([w.as_dict() for w in whisper._piece(clip, window, clip.text).words] if fits else [])
        return outputs

    return way


def pocket_sphinx(clips: list[Clip]) -> list[list[dict[str, Any]]]:
    from pocketsphinx import Decoder

    outputs = []
    for clip in clips:
        decoder = Decoder(samprate=16000, loglevel="FATAL", beam=1e-60, pbeam=1e-60, wbeam=1e-40)
        known = [w for w in clip.text.split() if decoder.lookup_word(w)]
        decoder.set_align_text(" ".join(known))
        pcm = (np.clip(clip.read(0, clip.samples), -1, 1) * 32767).astype(np.int16).tobytes()
        decoder.start_utt()
        decoder.process_raw(pcm, full_utt=True)
        decoder.end_utt()
        outputs.append(
            [
                {"word": s.word.partition("(")[0], "start": s.start_frame / 100, "end": (s.end_frame + 1) / 100}
                for s in decoder.seg() or []
                if s.word[0] not in "<["
            ]
        )
    return outputs


def with_merges(folder: Path, merges: int, to: Path) -> Path:
    """A copy of a model's folder whose tokenizer has only the first so many merges."""
    to.mkdir()
    for file in folder.iterdir():
        if file.name not in ("tokenizer.json", "vocab.json", "merges.txt"):
            (to / file.name).symlink_to(file) if file.suffix == ".safetensors" else shutil.copy(file, to)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:merges]
    (to / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    return to


if __name__ == "__main__":
    main()
