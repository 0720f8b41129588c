"""Hotwords: WER on words that a model was never trained on, and how many listed words it writes where nobody says them.

    python benchmarks/hotwords.py MODEL [--clips 60] [--beams 1 4] [--strengths 1 2 4]

MODEL is the export of the quickstart, which knows some places. `rare`: commands about places that training had not, all
of them listed. `others`: commands of the training's own words, with the same list; a listed word in an answer is a
leak. Voices of both are held out.
"""

import argparse
import random
from typing import Any

import numpy as np
import results

from stentor.audio.synth import say
from stentor.data.batch import Example
from stentor.inference.load import load
from stentor.metrics.wer import score
from stentor.sources.synth import Voices
from stentor.tasks.transcribe import Transcribe

RARE = (
    "geneva",
    "nairobi",
    "bergen",
    "seville",
    "havana",
    "denver",
    "zagreb",
    "antwerp",
    "bristol",
    "medina",
    "sofia",
    "leipzig",
)
KNOWN = ("athens", "berlin", "london", "paris")
SENTENCES = ("what is the weather in {}", "what is the weather in {} tomorrow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--clips", type=int, default=60)
    parser.add_argument("--strengths", type=float, nargs="*", default=[1.0, 2.0, 4.0])
    parser.add_argument("--beams", type=int, nargs="*", default=[1, 4])
    args = parser.parse_args()
    model = load(args.model)
    sets = {"rare": clips(RARE, args.clips, model), "others": clips(KNOWN, args.clips, model)}
    rows: list[dict[str, Any]] = []
    print(f"{'beams':>6}{'strength':>10}{'rare WER':>10}{'listed words right':>20}{'others WER':>12}{'leaks':>7}")
    for beams in args.beams:
        for strength in (0.0, *args.strengths):
            rows.append({"beams": beams, "strength": strength, **figures(model, sets, beams, strength)})
            row = rows[-1]
            print(
                f"{beams:6}{strength:10}{row['rare_wer']:10.1%}{row['listed_right']:20.1%}{row['others_wer']:12.1%}"
                f"{row['leaks']:7}",
                flush=True,
            )
    results.write("hotwords", rows, clips=args.clips, listed=list(RARE))


def clips(places: tuple[str, ...], count: int, model: Any) -> list[Example]:
    voices = Voices(count=70, part="test").names()
    drawn = random.Random(0)
    examples = []
    for i in range(count):
        text = drawn.choice(SENTENCES).format(places[i % len(places)])
        audio = say(text, drawn.choice(voices)).audio_at(model.bundle.processor.sample_rate)
        silence = np.zeros(model.bundle.processor.sample_rate // 4, np.float32)
        examples.append(Example(str(i), np.concatenate([silence, audio, silence]), text=text))
    return examples


def figures(model: Any, sets: dict[str, list[Example]], beams: int, strength: float) -> dict[str, float]:
    update = {"beams": beams, "hotwords": list(RARE) if strength else [], "hotword_strength": strength or 1.0}
    task: Transcribe = model.task.model_copy(update=update)
    texts = {name: [o["text"] for o in task.predict(model.bundle, examples, False)] for name, examples in sets.items()}
    wer = {name: score([e.text or "" for e in sets[name]], texts[name]).value for name in sets}
    pairs = [(e.text or "", text.split()) for e, text in zip(sets["rare"], texts["rare"])]
    right = [word in text for reference, text in pairs for word in reference.split() if word in RARE]
    return {
        "rare_wer": round(wer["rare"], 4),
        "listed_right": round(sum(right) / len(right), 4),
        "others_wer": round(wer["others"], 4),
        "leaks": sum(word in RARE for text in texts["others"] for word in text.split()),
    }


if __name__ == "__main__":
    main()
