"""Files that name other files or addresses: FFmpeg opens none of those."""

import socket
import threading

import numpy as np
import pytest
import soundfile

from stentor.audio.io import probe, read
from stentor.errors import AudioError
from stentor.inference.recording import FileRecording

pytest.importorskip("av")

HLS = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n"
MASTER = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000\n{}\n"
KEYED = '#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXT-X-KEY:METHOD=AES-128,URI="{}"\n#EXTINF:1.0,\n{}\n#EXT-X-ENDLIST\n'
CONCAT = "ffconcat version 1.0\nfile '{}'\n"
DASH = (
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S">'
    '<Period><AdaptationSet mimeType="audio/mp4"><Representation id="1" bandwidth="1"><BaseURL>{}</BaseURL>'
    "</Representation></AdaptationSet></Period></MPD>"
)
SDP = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {} RTP/AVP 0\r\n"


@pytest.fixture(scope="module")
def listener():
    """A port, and how many have called it."""
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def count():
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                calls.append(caller.close())

        thread = threading.Thread(target=count)
        thread.start()
        yield server.getsockname()[1], calls
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("text", [HLS, MASTER, KEYED, CONCAT, DASH], ids=["hls", "master", "key", "concat", "dash"])
@pytest.mark.parametrize("where", ["{}", "file:{}", "file://{}", "neighbour", "http", "concat:{}", "subfile:{}"])
@pytest.mark.parametrize("suffix", [".m3u8", ".wav", ".mp4"])
def test_what_a_file_names_is_not_opened(tmp_path, listener, text, where, suffix):
    port, calls = listener
    audio = np.random.default_rng(0).normal(0, 0.1, 16000)
    for neighbour in ("secret.wav", "secret.mp3"):
        soundfile.write(tmp_path / neighbour, audio, 16000)
    places = {"neighbour": "secret.mp3", "http": f"http://127.0.0.1:{port}/secret.mp3"}
    path = tmp_path / f"upload{suffix}"
    place = places.get(where, where.format(tmp_path / "secret.mp3"))
    path.write_text(text.format(place, place))
    for work in (probe, read, lambda path: list(FileRecording(path, 16000).blocks())):
        with pytest.raises(AudioError, match="files and addresses that a playlist names are not opened") as refusal:
            work(path)
        assert refusal.value.reason == "unreadable" and str(refusal.value).count(". ") == 0
    assert calls == []


@pytest.mark.parametrize("suffix", [".sdp", ".wav"])
def test_a_session_description_opens_no_port(tmp_path, suffix):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
        probing.bind(("127.0.0.1", 0))
        port = probing.getsockname()[1]
    path = tmp_path / f"upload{suffix}"
    path.write_bytes(SDP.format(port).encode())
    with pytest.raises(AudioError, match="it is text and no audio"):
        read(path)


def test_a_sequence_of_images_is_no_audio(tmp_path):
    av = pytest.importorskip("av")
    for number in range(2):
        with av.open(str(tmp_path / f"image{number}.png"), "w", format="image2") as container:
            stream = container.add_stream("png", width=16, height=16, pix_fmt="rgb24")
            frame = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
    for name in ("image0.png", "image1.png"):
        with pytest.raises(AudioError, match="holds no audio"):
            read(tmp_path / name)
