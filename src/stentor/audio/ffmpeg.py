"""FFmpeg: opens the files that libsndfile does not know."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stentor.errors import AudioError


@contextmanager
def open_av(path: Path) -> Iterator[Any]:
    """PyAV's container of a file that holds audio.

    FFmpeg is given the open file, and no protocol with which it could open another one: a playlist, a list of files or
    a session description, whatever it is called, reaches neither files of this machine nor addresses. Raises
    AudioError.
    """
    import av

    with path.open("rb") as file:
        try:
            container: Any = av.open(file, container_options={"protocol_whitelist": "none"}, metadata_errors="replace")
        except av.FFmpegError as error:
            reason = (
                ": it is text and no audio; files and addresses that a playlist names are not opened"
                if is_text(path)
                else f", neither by libsndfile nor by FFmpeg ({error.strerror})"
            )
            raise AudioError(f"{path} cannot be read{reason}.", "unreadable") from None
        with container:
            # FFmpeg also takes a name's ending for the contents.
            if not container.streams.audio or not container.streams.audio[0].codec_context.sample_rate:
                raise AudioError(f"{path} holds no audio.", "unreadable")
            yield container


@contextmanager
def ffmpeg_errors(path: Path) -> Iterator[None]:
    """Raises AudioError for what is wrong while a file is decoded."""
    import av

    try:
        yield
    except av.FFmpegError as error:
        raise AudioError(f"{path} is damaged or cut short: {error.strerror}.", "truncated") from None


def is_text(path: Path) -> bool:
    """Whether a file begins as plain text does."""
    with path.open("rb") as raw:
        head = raw.read(512)
    return all(byte >= 32 or byte in b"\t\r\n" for byte in head) and head.isascii()
