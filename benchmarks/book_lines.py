"""Sentences of books for the built-in voices: lines of 4 to 16 words, in lower case, as LibriSpeech writes them.

    python benchmarks/book_lines.py books/*.txt --not data/librispeech/dev.jsonl data/digits/test.jsonl

writes data/books.txt (40,000 lines) and data/books_held.txt (400 others). The books are plain text, such as those of
Project Gutenberg (https://www.gutenberg.org/cache/epub/1342/pg1342.txt). Sentences with digits, abbreviations in
capitals or letters that are not English are left out, and those that share five words in a row with a text of `--not`;
of a book that shares more than eight sentences with those nothing is taken.
"""

import argparse
import json
import random
import re
from pathlib import Path

SPELLED = {"Mr.": "Mister", "Mrs.": "Missus", "Dr.": "Doctor", "St.": "Saint"}
COMMON = {"the", "and", "of", "to", "in", "that", "was", "he", "a", "it", "his", "with"}
"""Words that make up a quarter of English; of a book where they are less than 15 % nothing is taken."""
MOST, SHARED = 3000, 8


def grams(text: str) -> set[str]:
    """Runs of five words."""
    words = text.split()
    return {" ".join(words[i : i + 5]) for i in range(len(words) - 4)}


def sentences(book: str) -> list[str]:
    """The usable sentences of a book, without Project Gutenberg's own words."""
    start, end = re.search(r"\*\*\* ?START OF.*?\*\*\*", book, re.S), re.search(r"\*\*\* ?END OF", book)
    book = book[start.end() if start else 0 : end.start() if end else None]
    book = book.replace("’", "'").replace("‘", "'").replace("—", " -- ").replace("_", "")
    lines = []
    for paragraph in re.split(r"\n\s*\n", book):
        text = " ".join(paragraph.split())
        for short, spelled in SPELLED.items():
            text = re.sub(rf"\b{re.escape(short)}", spelled, text)
        if len(text) < 80:
            continue
        for part in re.split(r"(?<=[.!?;:])[\"'”’)]*\s+|--", text):
            if re.search(r"[^A-Za-zé“”\"'(),.;:!? -]|\b[A-Z]{2,}\b|\bi[vx]+\b|\b[A-Z]\.", part):
                continue
            words = re.sub(r"[^a-z' ]", " ", part.lower().replace("-", " ")).split()
            words = [word.strip("'") for word in words if word.strip("'")]
            if 4 <= len(words) <= 16:
                lines.append(" ".join(words))
    return list(dict.fromkeys(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("books", nargs="+", type=Path)
    parser.add_argument("--not", dest="unwanted", nargs="*", type=Path, default=[], help="manifests")
    parser.add_argument("--to", type=Path, default=Path("data"))
    options = parser.parse_args()
    texts = [json.loads(line)["text"] for path in options.unwanted for line in path.read_text().splitlines()]
    unwanted = set().union(*map(grams, texts))
    draw, chosen = random.Random(0), set()
    for path in sorted(options.books):
        lines = sentences(path.read_text(encoding="utf-8", errors="replace"))
        clean = [line for line in lines if not grams(line) & unwanted]
        words = " ".join(clean).split()
        is_english = sum(word in COMMON for word in words) >= 0.15 * len(words)
        if clean and is_english and len(lines) - len(clean) <= SHARED:
            chosen |= set(draw.sample(clean, min(len(clean), MOST)))
    lines = draw.sample(sorted(chosen), min(len(chosen), 40400))
    for name, part in (("books.txt", lines[400:]), ("books_held.txt", lines[:400])):
        (options.to / name).write_text("\n".join(part) + "\n")
        print(f"{options.to / name}: {len(part)} lines")


if __name__ == "__main__":
    main()
