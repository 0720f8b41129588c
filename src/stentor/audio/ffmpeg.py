"""FFmpeg: opens the files that libsndfile does not know."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stentor.audio.suffixes import is_text
from stentor.errors import AudioError

_BARE = re.compile(r"[suf]\d+([bl]e)?|alaw|mulaw|vidc|aptx\w*|dfpwm|g726(le)?|codec2raw")
"""FFmpeg's formats without a header: it guesses a sampling rate, or 44.1 kHz for all."""
LATE, GAP = 0.02, 0.1
"""Seconds of silence that are worth inserting: in front, and inside a track, where timestamps are often rounded."""
NO_TIMESTAMPS, GENERIC_INDEX, TS_DISCONT = 0x80, 0x100, 0x200
"""Flags of FFmpeg's formats: without timestamps; bare streams, whose timestamps are counted; those that may jump."""
_LEAD = 1.0
"""Seconds decoded before a place in the middle of an MP3, whose frames need the ones before."""


@contextmanager
def open_av(path: Path) -> Iterator[Any]:
    """PyAV's container of a file that holds audio.

    FFmpeg is given the open file, and no protocol with which it could open another one: a playlist, a list of files or
    a session description, whatever it is called, reaches neither files of this machine nor addresses. Raises
    AudioError.
    """
    import av

    is_bare = path.suffix.lower() in (".raw", ".pcm")
    with path.open("rb") as file:
        try:
            container: Any = av.open(file, container_options={"protocol_whitelist": "none"}, metadata_errors="replace")
        except av.FFmpegError as error:
            if is_bare:
                raise _bare(path) from None
            reason = (
                ": it is text and no audio; files and addresses that a playlist names are not opened"
                if is_text(path)
                else f", neither by libsndfile nor by FFmpeg ({error.strerror})"
            )
            raise AudioError(f"{path} cannot be read{reason}.", "unreadable") from None
        with container:
            # FFmpeg also takes a name's ending for the contents.
            audio = container.streams.audio
            if not audio or audio[0].codec_context is None or not audio[0].codec_context.sample_rate:
                raise _bare(path) if is_bare else AudioError(f"{path} holds no audio.", "unreadable")
            if _BARE.fullmatch(container.format.name):
                raise _bare(path, container.format.name)
            yield container


def _bare(path: Path, kind: str = "s16le") -> AudioError:
    return AudioError(
        f"{path} has no header with its sampling rate: convert it, such as `ffmpeg -f {kind} -ar 8000 -i {path.name} "
        f"{path.stem}.wav`.",
        "unreadable",
    )


def audio_track(container: Any, path: Path, track: int | None) -> tuple[Any, tuple[str, ...]]:
    """The audio stream of this number (from 0; None: the first), and what is noted about it. Raises AudioError
    (`no_track`)."""
    streams = container.streams.audio
    described = []
    for i, stream in enumerate(streams):
        channels = stream.codec_context.channels
        parts = (stream.language, stream.metadata.get("title"), f"{channels} channel{'s' * (channels > 1)}")
        described.append(f"{i} ({', '.join(part for part in parts if part)})")
    listed = f"{len(streams)} audio track{'s' * (len(streams) > 1)}: {', '.join(described)}"
    if track is None:
        note = f"it has {listed}; the first is used, --track takes another"
        return streams[0], (note,) if len(streams) > 1 else ()
    if track >= len(streams):
        raise AudioError(f"{path} has no audio track {track}. It has {listed}.", "no_track")
    return streams[track], ()


class Track:
    """An audio track in the time of a player: there is silence where its timestamps begin later than those of the
    video, or leave a gap; what an encoder puts in front (priming) takes no time."""

    def __init__(self, container: Any, path: Path, track: int | None, partial: bool, known: bool | None = True):
        """`partial`: damage is passed over; `known`: the header says truly how long it is; None: it does not say."""
        self._container, self._path, self._partial = container, path, partial
        self.stream, self._notes = audio_track(container, path, track)
        self.rate, self.channels = self.stream.codec_context.sample_rate, self.stream.codec_context.channels
        flags = container.format.flags
        self._restarts, self._whole = bool(flags & TS_DISCONT), False
        self._timed = self._restarts or not flags & (GENERIC_INDEX | NO_TIMESTAMPS)
        self._begin = max(0.0, (container.start_time or 0) / 1e6)
        self._origin: float | None = None
        self._said = None if self._restarts or known is None else self._declared()
        self.declared = self._said if known and not partial else None
        """Seconds that the header declares for it, and that can be believed."""
        self._position = self._gaps = self._damaged = self._again = 0
        self._late = self._silence = self._behind = self._end = 0.0

    def _declared(self) -> float | None:
        """FFmpeg guesses it from the bit rate of bare streams, and gives many formats that of the video."""
        stream, alone = self.stream, len(self._container.streams) == 1
        if self._container.format.name in ("aac", "ac3", "eac3", "dts"):
            return None
        if stream.duration and (alone or "mp4" in self._container.format.name):
            start = float((stream.start_time or 0) * stream.time_base)
            return float(stream.duration * stream.time_base) + (start - self._begin if self._timed else 0.0)
        if tag := re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", "")):
            return 3600 * int(tag[1]) + 60 * int(tag[2]) + float(tag[3]) - self._begin
        return self._container.duration / 1e6 if self._container.duration and alone else None

    def pieces(self, start: float = 0.0) -> Iterator[np.ndarray]:
        """float32 [samples, channels] at its rate, from `start` seconds on. Raises AudioError for damage.

        Frames are decoded from the beginning, because seeking is inexact in many formats; in MP3 it is exact.
        """
        import av

        first, planar, kind = round(start * self.rate), av.AudioResampler(format="fltp"), None
        for frame in itertools.chain(self._frames(start), [None]):  # None: what the resampler still holds
            missing = 0 if frame is None else self._missing(frame)
            while missing > 0:  # a minute of silence at a time
                silence = np.zeros((min(missing, 60 * self.rate), self.channels), np.float32)
                yield silence[max(0, first - self._position) :]
                self._position += len(silence)
                missing -= len(silence)
            outs = []
            if frame is not None and kind != (kind := (frame.sample_rate, frame.layout.name, frame.format.name)):
                outs = planar.resample(None) if self._position else []
                planar = av.AudioResampler("fltp", (planar.layout or frame.layout).name, self.rate)
            for out in [*outs, *planar.resample(frame)]:
                yield out.to_ndarray()[:, max(0, first - self._position) :].T
                self._position += out.samples
        whole, self._whole = (self._container.duration or 0) / 1e6, True
        if self._said is None and "matroska" in self._container.format.name and self._end < 0.95 * whole - 0.2:
            self._said = self.declared = whole  # all tracks end before the file should

    def _missing(self, frame: Any) -> int:
        """Samples of silence that a frame's timestamp asks for in front of it."""
        if not self._timed or frame.pts is None:
            return 0
        begin = float(frame.pts * frame.time_base) - self._position / self.rate
        if self._origin is None:
            self._origin = min(begin, self._begin)
        ahead = begin - self._origin
        longest = 10.0 if self._restarts else (self._container.duration or 3.6e9) / 1e6
        if not -1.0 < ahead < longest:  # another recording was joined to it
            self._again += 1
            self._origin = begin
        elif ahead >= (GAP if self._position else LATE):
            self._late, self._gaps = (self._late, self._gaps + 1) if self._position else (ahead, 0)
            self._silence += ahead if self._position else 0.0
            return round(ahead * self.rate)
        self._behind = max(self._behind, -ahead if ahead > -1.0 else 0.0)
        return 0

    def _frames(self, start: float) -> Iterator[Any]:
        import av

        if sought := bool(self.declared) and self._container.format.name == "mp3" and start > 2 * _LEAD:
            time = self.stream.start_time + int((start - _LEAD) / self.stream.time_base)
            self._container.seek(time, stream=self.stream)
        packets, packet, zeros = self._container.demux(), None, False
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                if packet.pts is not None:
                    self._end = max(self._end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
                frames = packet.decode() if packet.stream.index == self.stream.index else []
            except av.FFmpegError as error:
                data, frames = bytes(packet) if packet is not None else b"?", []
                zeros = zeros or not data.strip(b"\0")  # padding, if nothing follows
                if data.strip(b"\0") and data[:3] not in (b"ID3", b"TAG"):  # tags inside a joined file
                    self._damage(str(error.strerror))
            if frames and zeros:
                zeros = self._damage("zeros in its middle")
            if sought and frames:
                sought = False
                time = float((frames[0].pts - self.stream.start_time) * self.stream.time_base)
                self._position = round(time * self.rate)
            yield from frames

    def _damage(self, fault: str) -> bool:
        if not self._partial:
            raise cut_short(self._path, fault, "damaged") from None
        self._damaged += 1
        return False

    @property
    def seconds(self) -> float:
        """Seconds that have been read so far."""
        return self._position / self.rate

    @property
    def notes(self) -> tuple[str, ...]:
        """Findings while it was read (see `AudioInfo`)."""
        found = {
            f"its audio begins {self._late:.2f} s after the video: silence stands in front": self._late,
            f"its timestamps leave {self._gaps} gaps, {self._silence:.2f} s: silence fills them": self._gaps,
            f"its timestamps go back by up to {self._behind:.2f} s: all is kept": self._behind >= GAP,
            f"its timestamps start again {self._again} times, as in joined recordings": self._again,
            f"{self._damaged} damaged packets are left out": self._damaged,
        }
        said = self.declared or self._said
        if self._whole and said and abs(self.seconds - said) > max(0.2, 0.05 * said):
            found[f"its header declares {said:.2f} s of audio, {self.seconds:.2f} s are there"] = True
        return (*self._notes, *(note for note, holds in found.items() if holds))


def cut_short(path: Path, fault: str, state: str = "cut short") -> AudioError:
    """The error for a file that is not whole."""
    return AudioError(f"{path} is {state}: {fault} (--partial reads what is there).", "truncated")
