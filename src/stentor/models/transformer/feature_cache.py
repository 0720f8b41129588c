"""Feature store: a folder that any number of processes fill and read at the same time, without locks.

`store.json` says with which settings. Each process that adds features writes two files of its own: NAME.bin with the
values end to end, and NAME.jsonl with a line for each record, which is written last. What a kill cuts short has no
line, or half a line, and is never seen. Everybody reads all files, and looks for new lines when a record is missing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import psutil

from stentor.audio.kaldi import KaldiFeatures
from stentor.data.audio_key import audio_key
from stentor.data.augment import Augment
from stentor.data.cut import Cut
from stentor.data.feature_cache import CachedFeatures
from stentor.data.load_audio import load_audio
from stentor.data.system import open_to_read, read_at
from stentor.errors import ConfigError, DataError
from stentor.models.encoders.features import Features

SETTINGS = "store.json"
FORMAT = 1
LEVELS = 2**16 - 1
"""Steps of a value of 16 bits."""


class FeatureLocation(NamedTuple):
    """Position and encoding of the features of a record."""

    file: str
    at: int
    frames: int
    samples: int
    low: float
    """Value of the lowest of 65536 levels (16 bits)."""
    step: float
    """From level to level (16 bits); 0: values are float32."""
    crc: int


class FeatureStore:
    """The features of many records in a folder. Pickles, and lives on in forked processes.

    Raises ConfigError when the folder was filled with other settings, DataError when it cannot be written.
    """

    def __init__(self, folder: Path, features: KaldiFeatures, bits: int):
        self.folder, self.rate, self.bins = folder, features.sampling_rate, features.bins
        # The mean and the range of a power spectrum say nothing about its quiet bins.
        self.bits = 32 if features.type == "spectrogram" else bits
        self.settings = features.model_dump(include=set(KaldiFeatures.model_fields)) | {"store_bits": self.bits}
        self._locations: dict[str, FeatureLocation] = {}
        self._seen: dict[str, int] = {}  # bytes of each index that were read
        self._open: dict[str, int] = {}  # file descriptors of values
        self._writer: _Writer | None = None
        self._check()
        self._look()

    @classmethod
    def of(cls, features: Features) -> FeatureStore:
        """The store of the section, which has one. One for this run alone goes when the process ends."""
        assert features.store is not None
        if features.store != "memory":
            return cls(Path(features.store).expanduser(), features, features.store_bits)
        folder = _temporary_folder()
        store = cls(folder, features, features.store_bits)
        weakref.finalize(store, _remove, folder, os.getpid())
        return store

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_writer": None}

    # Reading

    def get(self, cut: Cut, make: Callable[[np.ndarray], np.ndarray]) -> CachedFeatures:
        """The features of a cut, float32 [frames, bins]; missing ones are computed from the audio by `make` and added.

        Raises AudioError for audio that cannot be used.
        """
        key = audio_key(cut)
        cached = self.find(key)
        if cached is None:
            audio = load_audio(cut, self.rate)
            self.add(key, cut.id, make(audio), len(audio))
            cached = self.find(key)  # as it will be read from now on
            assert cached is not None
        return cached

    def has(self, cut: Cut) -> bool:
        """Whether the features of a cut are stored, as far as is known (see `look`)."""
        return audio_key(cut) in self._locations

    def find(self, key: str) -> CachedFeatures | None:
        """The features of a key; None where there are none, or they are damaged."""
        if key not in self._locations:
            self._look()
        location = self._locations.get(key)
        if location is None:
            return None
        kind = np.dtype("<u2" if location.step else "<f4")
        size = location.frames * self.bins * kind.itemsize
        data = self._read(location, size)
        if len(data) != size or zlib.crc32(data) != location.crc:
            del self._locations[key]
            return None
        values = np.frombuffer(data, kind).reshape(location.frames, self.bins)
        if location.step:
            values = values * np.float32(location.step) + np.float32(location.low)
        return CachedFeatures(values.astype(np.float32, copy=False), location.samples)

    def _read(self, location: FeatureLocation, size: int) -> bytes:
        if location.file not in self._open:
            try:
                self._open[location.file] = open_to_read(self.folder / f"{location.file}.bin")
            except OSError:
                return b""
        return read_at(self._open[location.file], size, location.at)

    def _look(self) -> None:
        """Read what was added to the indexes."""
        for entry in os.scandir(self.folder):
            name, _, kind = entry.name.partition(".")
            if kind != "jsonl":
                continue
            seen = self._seen.get(name, 0)
            if entry.stat().st_size <= seen:
                continue
            with open(entry.path, "rb") as file:
                file.seek(seen)
                lines = file.read()
            complete = lines.rfind(b"\n") + 1  # the last line may be half written
            for line in lines[:complete].splitlines():
                fact = json.loads(line)
                self._locations[fact.pop("key")] = FeatureLocation(
                    name, **{k: fact[k] for k in FeatureLocation._fields[1:]}
                )
            self._seen[name] = seen + complete

    # Writing

    def add(self, key: str, name: str, features: np.ndarray, samples: int) -> None:
        """Store the features [frames, bins] of the record `name`. Raises DataError when they cannot be written."""
        low, step = 0.0, 0.0
        values = features.astype("<f4")
        if self.bits == 16:
            low = float(features.min())
            step = (float(features.max()) - low) / LEVELS or 1.0
            values = np.rint((features - np.float32(low)) / np.float32(step)).clip(0, LEVELS).astype("<u2")
        data = values.tobytes()
        try:
            if self._writer is None or self._writer.process != os.getpid():
                self._writer = _Writer(self.folder)
            entry = {"key": key, "id": name, "frames": len(features), "samples": samples, "low": low, "step": step}
            self._writer.add(data, {**entry, "crc": zlib.crc32(data)})
        except OSError as error:
            raise DataError(
                f"Features cannot be stored in {self.folder} ({error.strerror}): make room there, or set "
                "`model.features.store` to another folder or to null."
            ) from error

    def _check(self) -> None:
        """Claim the folder for these settings, or refuse it."""
        file = self.folder / SETTINGS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                # Another rank may be writing the settings at this moment.
                if any(not other.name.startswith(SETTINGS) for other in self.folder.iterdir()):
                    raise ConfigError(
                        f"{self.folder} is not empty and holds no stored features (no {SETTINGS}): give another folder."
                    )
                part = self.folder / f"{SETTINGS}.{secrets.token_hex(4)}"
                part.write_text(json.dumps({"format": FORMAT, "features": self.settings}, indent=1) + "\n", "utf-8")
                part.replace(file)
        except OSError as error:
            raise ConfigError(f"Features cannot be stored in {self.folder} ({error.strerror}).") from error
        try:
            stored = json.loads(file.read_text("utf-8"))
            settings = stored["features"] if stored["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError):
            settings = None
        if settings is None:
            raise ConfigError(f"{file} is damaged or of another version: delete {self.folder} and store them again.")
        changes = [
            f"{k} was {settings.get(k)!r} and is {v!r}" for k, v in self.settings.items() if settings.get(k) != v
        ]
        if changes:
            raise ConfigError(
                f"{self.folder} holds features of other settings ({'; '.join(changes)}). Take those settings, or store "
                "the features of these in another folder."
            )

    # Messages of a run

    def summary(self, cuts: Sequence[Cut], augment: Augment) -> list[str]:
        """Lines about the stored part of a run's training data. Raises ConfigError where it would never be used, or
        there is no room for the missing part."""
        speeds = augment.speed or [1.0]
        if not any(augment.keeps(speed) for speed in speeds):
            raise ConfigError(
                "model.features.store: stored features are those of unchanged audio, and `data.augment` changes it "
                "in each epoch. Leave out `store`, or all of `data.augment` but `spec_augment`."
            )
        lines = []
        if not all(augment.keeps(speed) for speed in speeds):
            lines.append("Features are stored of items that are played at their own speed; others are computed.")
        if not cuts:
            return lines
        missing = [cut for cut in cuts if not self.has(cut)]
        stored = f"Features of {len(cuts) - len(missing):,} of {len(cuts):,} training items are stored in {self.folder}"
        if not missing:
            return [*lines, f"{stored}."]
        seconds = sum(cut.duration for cut in missing)
        shift = self.settings["frame_shift"]
        assert isinstance(shift, float)
        needed = seconds / shift * self.bins * self.bits / 8
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise ConfigError(
                f"model.features.store: the features of {seconds / 3600:.1f} h take {needed / 1e9:.1f} GB, and "
                f"{self.folder} has room for {free / 1e9:.1f} GB. Give a folder with more room, or leave out `store`."
            )
        subject = f"the other {len(missing):,}" if len(missing) < len(cuts) else "they"
        return [*lines, f"{stored}; {subject} are computed when they first come, and kept ({needed / 1e9:.2f} GB)."]


class _Writer:
    """The two files that one process adds to."""

    def __init__(self, folder: Path):
        self.process = os.getpid()
        name = secrets.token_hex(6)
        self.values = open(folder / f"{name}.bin", "xb", buffering=0)  # noqa: SIM115 - kept open
        self.index = open(folder / f"{name}.jsonl", "xb", buffering=0)  # noqa: SIM115
        self.at = self.lines = 0

    def add(self, data: bytes, fact: dict[str, Any]) -> None:
        line = json.dumps({**fact, "at": self.at}, ensure_ascii=False).encode() + b"\n"
        end = _write(self.values, data, self.at)
        self.lines = _write(self.index, line, self.lines)
        self.at = end


def _write(file: IO[bytes], data: bytes, at: int) -> int:
    """Write data at a position; returns the end. What a full disk cuts short is written over by the next."""
    view = memoryview(data)
    file.seek(at)
    while view:
        view = view[file.write(view) :]
    return at + len(data)


def _temporary_folder() -> Path:
    """A new temporary folder of this process. Those of processes that were killed are removed."""
    for old in Path(tempfile.gettempdir()).glob("stentor-features-*-*"):
        process = old.name.split("-")[2]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"stentor-features-{os.getpid()}-"))


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
