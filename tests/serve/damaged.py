"""Damaged uploads from a seed, and what happens to a request that sends one."""

import io
import json
import socket
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import soundfile

RATE = 16000
KINDS = ("wav", "flac", "mp3", "ogg", "opus", "m4a", "webm")
HUGE = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4))
LISTS = (
    b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n",
    b"ffconcat version 1.0\nfile /etc/passwd\n",
    b"v=0\r\ns=x\r\nm=audio 5004 RTP/AVP 0\r\n",
    b"<?xml version='1.0'?><MPD><Period/></MPD>",
    b"",
    b"\0" * 4096,
    b"RIFF\xff\xff\xff\xffWAVEfmt ",
    b"fLaC" + bytes(38),
    b"OggS" + bytes(60),
    b"\x1a\x45\xdf\xa3" + bytes(60),
)


@dataclass
class Upload:
    """Bytes of a request, and how they are sent."""

    head: bytes
    body: bytes
    name: str

    @property
    def length(self) -> int:
        """What it says that it sends."""
        return int(self.head.partition(b"content-length: ")[2])

    @property
    def content(self) -> bytes:
        return self.head + self.body


def good_audio() -> dict[str, bytes]:
    """A second and a half in each format."""
    time = np.arange(RATE * 3 // 2) / RATE
    audio = (0.3 * np.sin(2 * np.pi * 440 * time) * (0.55 - 0.45 * np.cos(8 * np.pi * time))).astype(np.float32)
    files = {}
    for kind, form, code in [
        ("wav", "WAV", "PCM_16"),
        ("flac", "FLAC", "PCM_16"),
        ("mp3", "MP3", "MPEG_LAYER_III"),
        ("ogg", "OGG", "VORBIS"),
        ("opus", "OGG", "OPUS"),
    ]:
        soundfile.write(file := io.BytesIO(), audio, RATE, format=form, subtype=code)
        files[kind] = file.getvalue()
    return {**files, "m4a": _av(audio, "mp4", "aac"), "webm": _av(audio, "webm", "libopus")}


def _av(audio: np.ndarray, form: str, codec: str) -> bytes:
    import av

    file, rate = io.BytesIO(), 48000
    frame = av.AudioFrame.from_ndarray(np.repeat(audio, rate // RATE)[None], format="fltp", layout="mono")
    frame.rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frames = av.AudioResampler("fltp", "mono", rate, frame_size=stream.codec_context.frame_size or 960)
        for piece in [*frames.resample(frame), *frames.resample(None), None]:
            container.mux(stream.encode(piece))
    return file.getvalue()


def form(audio: bytes, name: str, fields: dict[str, str]) -> bytes:
    """A multipart form whose boundary is x."""
    parts = [f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in fields.items()]
    parts.append(f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode())
    return b"".join(parts) + audio + b"\r\n--x--\r\n"


def body(audio: bytes, **fields: str) -> tuple[bytes, dict[str, str]]:
    """A form for http.client, and its headers."""
    return form(audio, "a.wav", fields), {"content-type": "multipart/form-data; boundary=x"}


def request(audio: bytes, name: str = "a.wav", path: str = "transcriptions", **fields: str) -> Upload:
    """One that nothing is wrong with."""
    sent = form(audio, name, {"model": "model", **fields})
    return Upload(head(len(sent), path), sent, name)


def head(length: int, path: str = "transcriptions", kind: str = "multipart/form-data; boundary=x") -> bytes:
    lines = [f"POST /v1/audio/{path} HTTP/1.1", "host: localhost", "connection: close", f"content-type: {kind}"]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def damaged_uploads(count: int, seed: int = 0) -> list[Upload]:
    """The first `count`; each depends on the seed and its number only."""
    files = good_audio()
    return [_damaged(files, number, np.random.default_rng([seed, number])) for number in range(count)]


def _damaged(files: dict[str, bytes], number: int, random: np.random.Generator) -> Upload:
    kind = KINDS[number % len(KINDS)]
    audio, name = bytearray(files[kind]), f"a.{kind}"
    if number % 5 == 0:
        name = f"a.{random.choice([*KINDS, 'raw', 'au', 'sd2', 'm3u8', 'mkv', 'jpg', 'gsm', 'vox'])}"
    match number % 8:
        case 0:
            audio = audio[: random.integers(len(audio))]
        case 1:
            for place in random.integers(0, len(audio), random.integers(1, 64)):
                audio[place] ^= 1 << random.integers(8)
        case 2:  # in the headers
            for place in random.integers(0, min(96, len(audio)), random.integers(1, 6)):
                audio[place] = random.integers(256)
        case 3:
            place = random.integers(len(audio))
            audio[place:place] = random.bytes(random.integers(1, 3000)) if number % 16 < 8 else bytes(2000)
        case 4:
            start, end = np.sort(random.integers(0, len(audio), 2))
            del audio[start:end]
        case 5:  # a size or a rate that is huge
            place = random.integers(0, min(64, len(audio) - 4))
            audio[place : place + 4] = HUGE[number % 4]
        case 6:
            other = files[KINDS[random.integers(len(KINDS))]]
            audio = bytearray(LISTS[number % len(LISTS)]) if number % 16 < 8 else audio[: len(audio) // 2] + other
        case _:
            return _damaged_form(request(bytes(audio), name), random)
    fields = [{}, {"stream": "true"}, {"response_format": "verbose_json"}, {"language": "en"}][number % 4]
    return request(bytes(audio), name, "translations" if number % 13 == 12 else "transcriptions", **fields)


def _damaged_form(good: Upload, random: np.random.Generator) -> Upload:
    """What is wrong with the form and not with its file."""
    body, choice = good.body, random.integers(14)
    file = body[body.index(b'--x\r\nContent-Disposition: form-data; name="file"') :]
    bodies = {
        1: body.replace(b"--x", b"--y"),
        2: body[: random.integers(len(body))],
        3: file,
        4: body[: len(body) - len(file)] + b"--x--\r\n",
        5: body.replace(b'; filename="', b'; nothing="'),
        6: body.replace(b'name="file"', b"name"),
        7: body.replace(b"\r\n\r\n", b"\r\n" + b"x: y\r\n" * 12 + b"\r\n", 1),
        8: body.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 9000 + b"\r\n\r\n", 1),
        9: body.replace(b"a.", b"../../\0\xff\xfe.", 1),
        10: b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 70 + body,
        11: file[:-7] + b"\r\n" + body,
    }
    sent = bodies.get(int(choice), body)
    form = "multipart/form-data"
    kinds = {12: form, 13: "multipart/mixed; boundary=x", 0: f"{form}; boundary={'x' * 300}"}
    length = len(sent) + (random.integers(-500, 500) if random.integers(6) == 0 else 0)
    return Upload(head(max(0, length), kind=kinds.get(int(choice), f"{form}; boundary=x")), sent, good.name)


def exchange(address: tuple[str, int], upload: Upload) -> tuple[int, str]:
    """The status of the answer and what it says; 0 where there is none, because the request was not whole."""
    with socket.create_connection(address, timeout=120) as connection:
        try:
            connection.sendall(upload.content)
            if upload.length > len(upload.body):  # otherwise the server would wait for the rest
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has answered before the end
        answer = received(connection)
    status = int(answer.split(b" ", 2)[1]) if answer else 0
    body = answer.partition(b"\r\n\r\n")[2]
    if status >= 400 and b"application/json" in answer:
        error = json.loads(body)["error"]
        assert error["message"] and {"type", "param", "code"} < {*error}, body
    return status, body.decode(errors="replace")


def received(connection: socket.socket, most: int = 2**30) -> bytes:
    answer = b""
    try:
        while len(answer) < most and (part := connection.recv(min(2**16, most - len(answer)))):
            answer += part
    except ConnectionResetError:
        pass
    return answer


def leave(address: tuple[str, int], upload: Upload, random: np.random.Generator) -> None:
    """Close the connection somewhere in the request or its answer, politely or not."""
    content = upload.content
    with socket.create_connection(address, timeout=120) as connection:
        if random.integers(2):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
        try:
            if random.integers(3):
                connection.sendall(content[: random.integers(len(content))])
            else:
                connection.sendall(content)
                received(connection, int(random.integers(200)))
        except OSError:
            pass
