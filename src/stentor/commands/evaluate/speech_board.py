"""`stentor evaluate --board` for speech synthesis: the list and the judges of a published evaluation, from the Hub or
from copies, and the conditions of its figures."""

import gzip
import json
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stentor.commands.evaluate_options import EvaluateOptions
from stentor.data.atomic_write import atomic_path
from stentor.data.storage_cache import work_place
from stentor.errors import ConfigError, DataError, MissingData, require
from stentor.metrics.format import figure, interval, text_table
from stentor.metrics.score import Score
from stentor.models.pretrained.published_weights import safe_folder
from stentor.sources.hub_open import explained
from stentor.sources.speech_boards import Judge, SpeechBoard, speech_boards


@dataclass(frozen=True)
class Copies:
    """Repositories of a board: on the Hub, or in `folder` as OWNER/NAME, which is filled with `fetch`."""

    board: SpeechBoard
    folder: Path | None
    fetch: bool

    def path(self, hub: str, files: Sequence[str], names: Sequence[str], kind: str = "model") -> Path:
        """The first of `names` that there is in a repository of which `files` are needed. Raises ConfigError, and
        MissingData where there is none."""
        root = self._repository(hub, files, kind)
        path = next((root / name for name in names if (root / name).exists()), None)
        if path is None:
            needed = " or ".join(names)
            reason = f"{hub} on the Hub has no {needed}: it has changed; give --copies with a folder that has it."
            if self.folder is not None:
                command = f"stentor evaluate --board {self.board.name} --copies {self.folder} --fetch"
                reason = f"{root} has no {needed}: run `{command}` where there is a network, and copy the folder here."
            raise MissingData(f"--board {self.board.name}: {reason}", root / names[0])
        return path

    def _repository(self, hub: str, files: Sequence[str], kind: str) -> Path:
        if self.folder is not None and not self.fetch:
            return self.folder / hub
        from huggingface_hub import snapshot_download

        to = None if self.folder is None else self.folder / hub
        try:
            with explained(hub):
                return Path(snapshot_download(hub, repo_type=kind, allow_patterns=list(files), local_dir=to))
        except DataError as error:
            reason = str(error).replace("give a local folder as `name`", "give --copies with a folder that holds it")
            raise ConfigError(f"--board {self.board.name}: {reason.replace('data set', 'repository')}") from None


def with_board(options: EvaluateOptions) -> EvaluateOptions:
    """The options with the list, the judges and the normaliser of their board, fetched before any work starts.
    `--recognizer` and `--embedder` replace the board's own. Raises ConfigError and DataError."""
    board = speech_boards()[str(options.board)]
    if options.data:
        raise ConfigError(f"--board {board.name} has a list of its own: leave out --data.")
    judges = own_judges(board, options)
    recognizers = board.recognizers if options.recognizer is None else {}
    if any(judge.section["type"] == "sherpa_onnx" for judge in recognizers.values()):
        require("judges", f"--board {board.name}", instead="give another recogniser with --recognizer")
    if "zh" in (board.language, *board.recognizers):
        require("evaluate", f"--board {board.name}", "opencc")
    copies = Copies(board, options.copies, options.fetch)
    data = _list(board, copies, options.limit)
    sections = {code: _section(judge, copies) for code, judge in recognizers.items()}
    chosen = [_section(judge, copies) for judge in judges]
    if other := sections.pop("other", None):
        chosen.insert(0, {"type": "by_language", "languages": sections, "other": other} if sections else other)
    judged = [*options.judge, *map(_spec, chosen)]
    normalizer = board.normalizer if options.normalizer == "auto" else options.normalizer
    return replace(options, data=_spec(data), judge=judged, normalizer=normalizer)


def own_judges(board: SpeechBoard, options: EvaluateOptions) -> list[Judge]:
    """The judges of a board besides its recognisers, without those that `--embedder` replaces."""
    return [judge for judge in board.judges if options.embedder is None or judge.section["type"] != "wavlm_ecapa"]


def conditions(options: EvaluateOptions, scores: Mapping[str, Score], items: int) -> dict[str, Any] | None:
    """The figures of a board under the names that they are published by, with the judges and what differs; None without
    a board."""
    board = speech_boards().get(options.board or "")
    if board is None:
        return None
    recognizers, embedder = (", ".join(j.name for j in js) for js in (board.recognizers.values(), board.judges[:1]))
    replaced = (
        ("recogniser", options.recognizer, recognizers),
        ("embedder", options.embedder, embedder),
        ("normaliser", options.normalizer if options.normalizer != board.normalizer else None, board.normalizer),
        ("number of items", f"{items:,}" if board.items not in (None, items) else options.limit, board.items or "all"),
    )
    differs = [f"{what} {here}, published {there}" for what, here, there in replaced if here is not None]
    if board.differs and options.recognizer is None:
        differs.append(board.differs)
    reports = {
        name: {"published_as": title, **scores[name].as_dict()}
        for name, title in board.reports.items()
        if name in scores
    }
    used = board.recognizers.values() if options.recognizer is None else ()
    replacements = [spec for spec in (options.recognizer, options.embedder) if spec is not None]
    judges = [*replacements, *(judge.name for judge in (*used, *own_judges(board, options)))]
    facts = {"name": board.name, "title": board.title, "hub": board.hub, "normalizer": options.normalizer}
    return {**facts, "judges": judges, "reports": reports, "differs": differs}


def table(facts: Mapping[str, Any]) -> str:
    """The figures of `conditions` as text."""
    rows = [["published as", "metric", "value", "95 %"]]
    for name, score in facts["reports"].items():
        rows.append([score["published_as"], name, *(figure(name, score["value"]), interval(name, score) or "–")])
    lines = [f"{facts['title']}: judges {', '.join(facts['judges'])}; normaliser {facts['normalizer']}."]
    lines += [*text_table(rows), *(f"Differs from published figures: {text}" for text in facts["differs"])]
    return "".join(f"\n{line}" for line in lines)


def _list(board: SpeechBoard, copies: Copies, limit: int | None) -> dict[str, Any]:
    """The keys of the source with the list, whose audio is unpacked."""
    texts = [] if board.transcripts is None else [board.transcripts]
    files = [*board.lists, *texts, board.archive]
    folder = board.archive.partition(".")[0]
    archive = copies.path(board.hub, files, [folder, board.archive], "dataset")
    audio = archive.parent if archive.is_dir() else unpacked(archive)
    places = (place / name for name in board.lists for place in (archive.parent, audio))  # or in the archive
    path = next((place for place in places if place.is_file()), None)
    path = path or copies.path(board.hub, files, board.lists, "dataset")
    data = {
        "type": "speech_list",
        "path": str(path),
        "audio_root": str(audio) if path.suffix == ".jsonl" else None,
        "transcripts": str(copies.path(board.hub, files, texts, "dataset")) if texts else None,
        "language": board.language,
        "limit": limit,
    }
    return {key: value for key, value in data.items() if value is not None}


def unpacked(archive: Path) -> Path:
    """The folder in the cache with the files of a tar archive, of which none may lie outside. Raises DataError."""
    facts = archive.stat()
    folder = work_place("boards", archive.resolve().with_name(f"{archive.name}-{facts.st_size}-{facts.st_mtime_ns}"))
    if folder.is_dir():
        return folder
    print(f"unpacking {archive}", flush=True)
    try:
        with atomic_path(folder) as part, tarfile.open(archive) as tar:
            tar.extractall(part, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}): get it again.") from None
    return folder


def _section(judge: Judge, copies: Copies) -> dict[str, Any]:
    path = copies.path(judge.hub, judge.files or [judge.path, f"{judge.path}/*"], [judge.path])
    return judge.section | {"from": str(safe_folder(path, "--board") if path.is_dir() else path)}


def _spec(keys: Mapping[str, Any]) -> str:
    """Keys of a section as an option of the command line."""
    return ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())
