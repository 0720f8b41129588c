"""Inputs as people type them: folders, patterns, addresses, standard input; bytes and files in Python."""

import io
import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from stentor.errors import AudioError, ConfigError
from stentor.inference import recording
from stentor.inference.load import load
from stentor.inference.recording import expand, label, open_recording

RATE = 16000


@pytest.fixture
def server(tone, monkeypatch):
    """A web server: `sound` is the address of a file, others do what their names say. Not through a proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    sound = tone("served.wav", (1, -20)).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            status = {"/missing.wav": 404, "/moved.wav": 302}.get(path, 200)
            body = b"<html>Sign in</html>" if path == "/page.wav" else sound
            if path == "/private.wav" and self.headers["Authorization"] != "Basic dXNlcjpzZWNyZXQ=":
                status = 401
            self.send_response(status)
            if path == "/moved.wav":
                self.send_header("Location", "/sound.wav")
            if path != "/endless.wav":
                self.send_header("Content-Length", str(len(body) + 1000 * (path == "/short.wav")))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture
def run(run):
    return partial(run, "transcribe")


def test_folders_and_patterns(export, tone, tmp_path, run):
    files = [tone(f"talks/{name}", (1, -10)) for name in ("b.wav", "a.flac", "deep/c.WAV", "odd[1].wav")]
    (tmp_path / "talks/notes.txt").write_text("no audio")
    talks = tmp_path / "talks"
    in_order = [str(talks / n) for n in ("a.flac", "b.wav", "deep/c.WAV", "odd[1].wav")]
    assert expand([str(talks)]) == in_order
    assert expand([str(talks / "*.wav")]) == [in_order[1], in_order[3]]
    assert expand([str(talks / "**/*.[wW]*"), str(files[0])]) == [*in_order[1:], in_order[1]]
    assert expand([str(files[3])]) == [str(files[3])]  # a file of this name is no pattern
    code, out, _ = run(export(), talks)
    assert code == 0 and [line.split("\t") for line in out.splitlines()] == [[name, "level 10"] for name in in_order]


def test_folders_contain_every_format_and_what_is_skipped_is_named(tmp_path):
    names = ["a.oga", "b.m4b", "c.3GP", "d.mka", "e.avi", "f.ts", "g.gsm", "h.Amr", "i.wv", "deep/j.spx"]
    others = ["k.pdf", "l.PDF", "m.zip", "a.txt", "a.srt", "deep/code.ts", "._a.wav", ".cache/n.wav", "noname"]
    for name in names + others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"let text: string" if "code" in name else b"\0\1")
    said = []
    assert expand([str(tmp_path)], said.append) == sorted(str(tmp_path / name) for name in names)
    (message,) = said
    assert "skipped: 2 .pdf (k.pdf, l.PDF), 1 .ts (deep/code.ts), 1 .zip (m.zip), 1 others. To read one" in message


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nothing/*.wav", r"The pattern .*nothing/\*.wav matches no file"),
        ("empty", "The folder .*empty contains no audio"),
    ],
)
def test_what_stands_for_no_file(tmp_path, argument, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").write_text("")
    with pytest.raises(ConfigError, match=message):
        expand([str(tmp_path / argument)])
    with pytest.raises(ConfigError, match="only be given once"):
        expand(["-", "-"])


def test_standard_input(export, tone, tmp_path, run, monkeypatch):
    data = tone("a.wav", (1, -20)).read_bytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    code, out, _ = run(export(), "-", "--format", "json")
    transcript = json.loads(out)
    assert code == 0 and (transcript["audio"], transcript["text"]) == ("stdin", "level 20")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    code, _, err = run(tmp_path / "model", "-", "--out", tmp_path / "out")
    assert code == 3 and "stdin is empty (0 bytes)" in err


def test_addresses(export, tone, tmp_path, run, server):
    out = tmp_path / "out"
    at = f"{server.replace('http://', 'http://user:secret@')}/private.wav?sig=secret"
    code, _, err = run(
        export(), at, f"{server}/moved.wav", tone("local.wav", (1, -10)), "--out", out, "--format", "json"
    )
    assert (code, err) == (0, "")
    transcripts = {p.stem: json.loads(p.read_text()) for p in out.glob("[!.]*")}
    assert {name: t["text"] for name, t in transcripts.items()} == {
        "private": "level 20",
        "moved": "level 20",
        "local": "level 10",
    }
    assert transcripts["private"]["audio"] == f"{server}/private.wav"


def test_addresses_that_give_no_audio(export, tone, tmp_path, run, server, monkeypatch):
    bad = [f"{server}/{name}.wav" for name in ("missing", "page", "short")]
    code, out, err = run(export(), *bad, "http://127.0.0.1:1/a.wav?sig=secret", tone("a.wav", (1, -10)))
    assert code == 3 and out.endswith("level 10\n")
    lines = err.strip().splitlines()
    assert f"{bad[0]} cannot be downloaded: the server answers 404 Not Found" in lines[0]
    assert bad[1] in lines[1] and "cannot be read" in lines[1]
    assert f"{bad[2]} is incomplete" in lines[2]
    assert "http://127.0.0.1:1/a.wav cannot be downloaded" in lines[3] and "Connection refused" in lines[3]
    assert "secret" not in err and "stentor-" not in err
    monkeypatch.setattr(recording, "LARGEST", 1000)
    for name in ("sound", "endless"):  # the second one does not say its size
        code, _, err = run(tmp_path / "model", f"{server}/{name}.wav")
        assert code == 3 and f"{server}/{name}.wav is larger than" in err


def test_what_is_downloaded_goes_with_its_recording(server, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    recording = open_recording(f"{server}/sound.wav", RATE)
    assert not list((tmp_path / "temporary").iterdir())
    assert sum(map(len, recording.blocks())) == RATE
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    del recording
    assert not list((tmp_path / "temporary").iterdir())


def test_labels_hold_no_secrets():
    assert label("https://user:pass@host.org/a/b.wav?X-Amz-Signature=1#x") == "https://host.org/a/b.wav"
    assert label("-") == "stdin" and label("a?b.wav") == "a?b.wav"


def test_bytes_and_files_in_python(export, tone):
    path = tone("a.wav", (1, -20))
    model = load(export())
    assert model.transcribe(path.read_bytes()).text == "level 20"
    with path.open("rb") as file:
        transcript = model.transcribe(file)
    assert (transcript.text, transcript["audio"]) == ("level 20", str(path))
    assert model.transcribe(io.BytesIO(path.read_bytes())).text == "level 20"
    with pytest.raises(AudioError, match="bytes cannot be read"):
        model.transcribe(b"no audio at all" * 99)
    with pytest.raises(ConfigError, match="transcribe_many"):
        model.transcribe([path, path])


@pytest.mark.parametrize("words", [False, True])
def test_all_formats(export, tone, tmp_path, run, words):
    options = ["--words"] if words else []
    code, _, _ = run(
        export(task="words"), tone("a.wav", (1, -10)), "--format", "all", "--out", tmp_path / "o", *options
    )
    formats = {"json", "txt", "srt", "vtt", "ass", "lrc", "tsv", "rttm", "stm", "seglst.json"}
    formats |= {"ctm", "TextGrid"} if words else set()
    assert code == 0 and {p.name.partition(".")[2] for p in (tmp_path / "o").glob("[!.]*")} == formats


def test_files_that_are_done_are_skipped(export, tone, tmp_path, run):
    files = [tone(f"{name}.wav", (1, -10)) for name in "abc"]
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_text("mine\n")
    (out / "a.json").write_text("{}")
    (out / "b.txt").write_text("only one of two\n")
    command = partial(run, export(), *files, "--out", out, "--format", "txt,json", "--skip-existing")
    code, _, err = command()
    assert (
        code == 0 and err.endswith("1 of 3 files have their outputs already.\n") and "a.json and 2 more, as it" in err
    )
    assert [Path(out / f"{n}.txt").read_text() for n in "abc"] == ["mine\n", "only one of two\n", "level 10\n"]
    assert (out / "b.json").is_file() and command()[2].endswith("3 of 3 files have their outputs already.\n")
    code, _, err = run(tmp_path / "model", *files, "--skip-existing")
    assert code == 2 and "--out" in err
