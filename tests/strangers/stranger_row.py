"""The table of strangers' inputs: a row is a function that makes an input, with the command and what must come out."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "tests" / "frozen" / "exports"
MODELS = {
    "{words}": FROZEN / "speech_llm_words" / "export",
    "{ctc}": FROZEN / "ctc" / "export",
    "{diarizer}": FROZEN / "diarize" / "export",
    "{whisper}": FROZEN / "whisper" / "export",
    "{voice}": FROZEN / "omnivoice" / "export",
}
"""Names of models in commands."""

NEVER = (
    "Traceback",
    "unexpected failure",
    "pydantic",
    "Extra inputs",
    "unable to parse",
    "Input should be",
    "libmpg123",
)
"""What no user may read."""


@dataclass(frozen=True)
class Row:
    """One input and its result. What is None or empty is not compared."""

    name: str
    report: str
    """The public report that it follows."""
    make: Callable[[Path], None]
    """Writes the input into a folder."""
    command: str
    code: int = 0
    text: str | None = None
    """The transcript in the JSON output."""
    duration: float | None = None
    """Seconds in the JSON output, within 0.15."""
    starts: tuple[float, ...] | None = None
    """Starts of the segments in the JSON output or of the cues, in seconds, within 0.2."""
    files: tuple[str, ...] | None = None
    """Files in the folder `out`, without hidden ones and sidecars."""
    says: tuple[str, ...] = ()
    """What stands in the output or in the message."""
    later: str = ""
    """The reason why this row fails today, if it is known to."""


ROWS: list[Row] = []


def row(report: str, command: str, **expected: object) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Add the decorated function, which makes the input, to the table under its name."""

    def add(make: Callable[[Path], None]) -> Callable[[Path], None]:
        link = f"https://github.com/{report}" if "/" in report else report
        ROWS.append(Row(make.__name__, link, make, command, **expected))
        return make

    return add


def seconds(clock: str) -> float:
    """The seconds of `01:02:03,456`."""
    hours, minutes, rest = re.split("[:]", clock.replace(",", "."))
    return 3600 * int(hours) + 60 * int(minutes) + float(rest)


def check(row: Row, code: int, out: str, err: str, folder: Path) -> None:
    """Compare what a command did with its row, and with what holds for every row."""
    everything = f"exit {code}\n{out}{err}"
    assert code == row.code, everything
    assert not [word for word in NEVER if word in out + err], everything
    assert code == 0 or "stentor: " in err or "Error: " in err, everything
    for part in row.says:
        assert part in out + err, f"{part!r} is missing\n{everything}"
    if row.files is not None:
        found = sorted(p.relative_to(folder / "out").as_posix() for p in (folder / "out").rglob("*") if p.is_file())
        assert [f for f in found if "/." not in f"/{f}"] == sorted(row.files), everything
    cues = [(seconds(a), seconds(b)) for a, b in re.findall(r"(\d+:\d+:\d+[.,]\d+) --> (\d+:\d+:\d+[.,]\d+)", out)]
    assert all(a < b for a, b in cues) and all(a[1] <= b[0] for a, b in pairwise(cues)), everything
    transcript = json.loads(out) if out.startswith("{") else {}
    words = transcript.get("words", [])
    assert all(w["start"] < w["end"] for w in words), everything
    assert all(a["end"] <= b["start"] for a, b in pairwise(words)), everything
    spans = [(s["start"], s["end"]) for s in transcript.get("segments", [])] or cues
    assert all(a < b for a, b in spans), everything
    if transcript:
        assert all(b <= transcript["duration"] + 0.001 for _, b in spans), everything
    if row.text is not None:
        assert transcript["text"] == row.text, everything
    if row.duration is not None:
        assert abs(transcript["duration"] - row.duration) < 0.15, everything
    if row.starts is not None:
        assert len(spans) == len(row.starts), everything
        assert all(abs(span[0] - start) < 0.2 for span, start in zip(spans, row.starts)), everything
