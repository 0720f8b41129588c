"""`speech_list`: evaluation lists of speech synthesis, each line a text and a reference of the voice to speak it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from stentor.data.cut import Cut, UnusableRecord, check_text_fields, cut_from_record
from stentor.data.jsonl import MAX_PROBLEMS, each_line, open_text, parse_object, raise_problems
from stentor.data.storage import StoragePath, is_remote, join
from stentor.errors import DataError, RecordError
from stentor.sources.base import Source
from stentor.text.languages import language_code
from stentor.text.protocols import NORMALIZERS

ZERO_SHOT = ("id", "reference_text", "reference", "text")
COLUMNS: dict[str, tuple[str, dict[int, tuple[str, ...]]]] = {
    "seed_tts": ("|", {4: ZERO_SHOT, 5: (*ZERO_SHOT, "audio_path"), 3: ("id", "text", "reference"), 2: ("id", "text")}),
    "minimax": ("|", {2: ("speaker", "text")}),
    "librispeech_pc": ("\t", {6: ("reference", "", "reference_text", "id", "", "text")}),
    "tsv": ("\t", {4: ZERO_SHOT}),
}
"""For each format in columns: the separator, and the fields by the number of columns."""
REFERENCE_ALIASES = {"ref_audio": "reference", "ref_text": "reference_text"}
"""OmniVoice's names."""
SCORED_TEXT = "scored_text"
"""Key of the text that errors are counted against, where it is not the one that is spoken."""
PROTOCOLS = {"seedtts": "seed_tts", **{name: name for name in NORMALIZERS}}
"""Beginnings of the names of OmniVoice's lists, or formats: the normaliser that their error rates are published in."""


def beside_or_here(written: str, folder: Path) -> Path:
    """A file that a list in `folder` names: as in manifests relative to the list; or, as in OmniVoice, to the working
    directory."""
    beside = join(folder, written)
    if is_remote(beside):
        return beside
    return Path(written) if Path(written).exists() and not beside.exists() else beside


def _transcript(record: dict[str, Any], number: int, where: str) -> tuple[str, str]:
    check_text_fields(record, where, ("id", "text"))
    return str(record.get("id")), record.get("text") or ""


class SpeechList(Source):
    """Texts to speak, each in the voice of a reference: the lists of speech synthesis benchmarks. Records have no
    recording of the text itself, unless the list names one, so only `stentor evaluate` takes them.

    Supported formats: Seed-TTS-eval's `meta.lst`, the LibriSpeech-PC list of F5-TTS, `text/LANGUAGE.txt` of MiniMax's
    multilingual test set, ZipVoice's `test.tsv`, OmniVoice's JSON lines, and JSON lines with `reference` and
    `reference_text`.
    """

    type: Literal["speech_list"] = "speech_list"
    path: StoragePath
    """The list."""
    format: Literal["auto", "seed_tts", "minimax", "librispeech_pc", "tsv", "jsonl"] = "auto"
    """Format of the lines. `seed_tts`: `utt|prompt_text|prompt_wav|text`, or with a fifth column for the recording, or
    `utt|text|prompt_wav`, or `utt|text`. `tsv`: the first of these with tabs. `minimax`: `speaker|text`.
    `librispeech_pc`: prompt, seconds, text, utterance, seconds, text, with tabs. `jsonl`: objects with `text` and `id`,
    `reference` (or `ref_audio`), `reference_text` (or `ref_text`), `language` (or `language_id`), `instruct`, `voice`
    (a saved one), `duration`, `speed`, `audio_path`, `scored_text`. Auto: by the first line."""
    audio_root: StoragePath | None = None
    """Folder that relative paths start from: for LibriSpeech-PC, LibriSpeech's `test-clean`; for MiniMax, `speaker`.
    Leading folders of a path that are not there are left out. Null: the list's own folder, or the working directory;
    for MiniMax `../speaker`."""
    transcripts: StoragePath | None = None
    """JSON lines with `id` and `text`: what errors are counted against, where it is not the spoken text, such as
    OmniVoice's transcripts of LibriSpeech-PC."""

    _voices: dict[str, tuple[str, str | None]] | None = None

    def layout(self) -> str:
        """The format, looked up where it is `auto`. Raises DataError for a file that is no such list."""
        from stentor.data.layouts.by_path import list_format

        if self.format != "auto":
            return self.format
        path = self.path.expanduser()
        if not path.exists():
            with open_text(path):
                pass
        layout = list_format(path) or ("jsonl" if path.suffix in (".jsonl", ".json") else None)
        if layout is None:
            raise DataError(
                f"{path} is not an evaluation list: its first line has neither `|` nor tabs between columns. Set its "
                "format with `format`."
            )
        return layout

    def facts(self) -> dict[str, Any]:
        """Identity of the list: its name, format and SHA-256, and the `protocol`, the normaliser of its published error
        rates (None where there is none)."""
        layout, name = self.layout(), self.path.name.lower()
        stem = name if layout == "jsonl" else layout
        protocol = next((n for start, n in PROTOCOLS.items() if stem.startswith(start)), None)
        digest = hashlib.sha256(self.path.expanduser().read_bytes()).hexdigest()
        return {"name": self.path.name, "format": layout, "sha256": digest, "protocol": protocol}

    def records(self) -> Iterator[Cut]:
        """A cut for each line, with the keys `reference` (an existing file) and `reference_text`; `speak_seconds` where
        the line says how long its speech is to be. Raises DataError that names every line that cannot be used: a list
        with fewer lines is another list."""
        layout, path = self.layout(), self.path.expanduser()
        problems: list[str] = []
        lines_of: dict[str, int] = {}
        transcripts = None
        if self.transcripts is not None:
            transcripts = dict(each_line(self.transcripts.expanduser(), _transcript))
        with open_text(path) as lines:
            for number, line in lines.numbered():
                if isinstance(line, str) and not line.strip():
                    continue
                where = f"{path}:{number}"
                try:
                    cut = self._cut(self._fields(line, layout, number, where), number, where)
                    if (first := lines_of.setdefault(cut.id, number)) != number:
                        raise DataError(f"{where}: the id '{cut.id}' was already given in line {first}.")
                    if transcripts is not None:
                        if cut.id not in transcripts:
                            raise DataError(f"{where}: {self.transcripts} has no text of the id '{cut.id}'.")
                        cut.custom = {**(cut.custom or {}), SCORED_TEXT: transcripts[cut.id]}
                except DataError as error:
                    problems.append(str(error))
                    if len(problems) == MAX_PROBLEMS:
                        break
                    continue
                yield cut
        raise_problems(str(path), problems)
        if not lines_of:
            raise DataError(f"{path} holds no texts.")

    def _fields(self, line: str | RecordError, layout: str, number: int, where: str) -> dict[str, Any]:
        """The fields of a line, by the names of a manifest. Raises DataError."""
        if layout == "jsonl":
            record = {k: v for k, v in parse_object(line, where).items() if v is not None}
            return {REFERENCE_ALIASES.get(key, key): value for key, value in record.items()}
        if isinstance(line, RecordError):
            raise line
        divider, known = COLUMNS[layout]
        columns = [column.strip() for column in line.rstrip("\r\n").split(divider)]
        if len(columns) not in known:
            shape = divider.replace("\t", "<tab>").join(name or "seconds" for name in next(iter(known.values())))
            counts = ", ".join(map(str, sorted(known)))
            raise DataError(f"{where}: {len(columns)} columns; lines of {layout} have {counts} ({shape}).")
        fields = {name: column for name, column in zip(known[len(columns)], columns, strict=True) if name and column}
        if "reference" in known[len(columns)] and "reference" not in fields:
            raise DataError(f"{where}: the reference is empty: write its file, or leave out its columns in all lines.")
        folder = self.path.absolute().parent
        if layout == "minimax":
            fields = {**fields, **self._speaker(fields["speaker"], where), "id": f"{self.path.stem}-{number:04d}"}
        elif layout == "librispeech_pc":
            fields["language"] = "en"
            fields["reference"] = self._librispeech(fields["reference"], where)
            recording = self._librispeech(fields["id"], where)
            if self._path(recording).exists():
                fields["audio_path"] = recording
        elif folder.name in ("en", "zh"):  # the two parts of Seed-TTS-eval
            fields["language"] = folder.name
        return {**fields, "id": fields.get("id", "").removesuffix(".wav")} if layout == "seed_tts" else fields

    def _cut(self, record: dict[str, Any], number: int, where: str) -> Cut:
        from lhotse import MonoCut, SupervisionSegment

        texts = ("reference", "reference_text", "audio_path", "voice", "instruct", SCORED_TEXT)
        check_text_fields(record, where, texts)
        for key in ("duration", "speed"):
            if not (type(value := record.get(key, 1)) in (int, float) and 0 < value < float("inf")):
                raise DataError(f"{where}: `{key}` must be a number above 0, got {value!r}.")
        if not (record.get("text") or "").strip():
            raise DataError(f"{where}: the text is empty: write what is to be spoken, or leave the line out.")
        name = record.get("id") or f"line{number:05d}"
        record = {**record, "id": name}
        for key in ("reference", "audio_path"):
            if record.get(key):
                record[key] = str(self._existing(record[key], key, where))
        if record.get("audio_path"):
            cut = cut_from_record(record, Path(), where)
            if isinstance(cut, UnusableRecord):
                raise DataError(cut.message)
            return cut
        language = record.get("language") or record.get("language_id")
        fields = {"text": record["text"], "language": language, "speaker": record.get("speaker")}
        shown = ("id", "text", "language", "language_id", "speaker", "duration")
        custom = {key: value for key, value in record.items() if key not in shown}
        if record.get("duration") is not None:
            custom["speak_seconds"] = record["duration"]
        supervision = SupervisionSegment(id=name, recording_id=name, start=0.0, duration=0.0, **fields)
        return MonoCut(name, 0.0, 0.0, channel=0, supervisions=[supervision], custom=custom or None)

    def _path(self, written: str) -> Path:
        if self.audio_root is not None:
            root, parts = self.audio_root.expanduser(), Path(written).parts
            paths = [join(root, written), *(join(root, "/".join(parts[i:])) for i in range(1, len(parts)))]
            return next((path for path in paths if path.exists()), paths[0])
        return beside_or_here(written, self.path.expanduser().parent)

    def _existing(self, written: str, key: str, where: str) -> Path:
        path = self._path(written)
        if not path.is_file():
            noun = "reference" if key == "reference" else "recording"
            raise DataError(
                f"{where}: the {noun} {path} does not exist: get the list's audio, or give its folder as `audio_root`."
            )
        return path.absolute()

    def _librispeech(self, utterance: str, where: str) -> str:
        """The file of an utterance, in LibriSpeech's own layout of folders."""
        speaker, _, chapter = utterance.rpartition("-")[0].partition("-")
        if not chapter:
            raise DataError(f"{where}: {utterance!r} is not an utterance of LibriSpeech, such as 1089-134686-0000.")
        return f"{speaker}/{chapter}/{utterance}.flac"

    def _speaker(self, label: str, where: str) -> dict[str, str]:
        """Reference, its text and the language of a speaker of MiniMax's test set, such as `english_male`."""
        from stentor.audio.suffixes import is_audio

        root = (self.audio_root or self.path.expanduser().absolute().parent.parent / "speaker").expanduser()
        if self._voices is None:
            self._voices = {}
            texts = root / "prompt_text.txt"
            lines = texts.read_text("utf-8").splitlines() if texts.is_file() else []
            prompts = {name.strip(): text.strip() for name, _, text in (line.partition("|") for line in lines)}
            for file in sorted(root.rglob("*")):
                if is_audio(file.relative_to(root)):
                    voice = (str(file), prompts.get(file.name))
                    self._voices.setdefault(file.parent.name if file.parent.name != root.name else file.stem, voice)
        if label not in self._voices:
            raise DataError(
                f"{where}: the speaker {label} has no recording below {root}: get the list's audio, or give its "
                "folder as `audio_root`."
            )
        reference, text = self._voices[label]
        language = language_code(label.rpartition("_")[0] or label) or ""
        return {"reference": reference, "language": language} | ({"reference_text": text} if text else {})
