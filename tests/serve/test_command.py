"""Wrong usage of `stentor serve`; test_stop.py starts and stops it."""

import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "There is nothing to serve"),
        (["MODEL", "--host", "0.0.0.0"], "open to everybody who reaches 0.0.0.0"),
        (["MODEL", "--host", "0.0.0.0", "--api-key-env", "NO_SUCH_KEY"], "must hold keys of at least 16 characters"),
        (["MODEL", "--name", "whisper-1"], "write ALIAS=RUN"),
        (["MODEL", "--diarizer", "MODEL"], "not to diarize"),
        (["nothing"], "There is no model nothing"),
        (["--name", "a=MODEL", "--name", "a=nothing"], "Two of the models are called a:"),
        (["MODEL", "--allow-origin", "example.org"], "write scheme and host"),
        (["MODEL", "--host", "no.such.host.example", "--api-key-env", "KEYS"], "knows no such address"),
    ],
)
def test_wrong_usage(export, run, monkeypatch, options, message):
    monkeypatch.setenv("KEYS", "a-key-of-sixteen-characters another-key-of-the-server")
    model = str(export())
    code, out, err = run("serve", "--port", "0", *(option.replace("MODEL", model) for option in options))
    assert (code, out) == (2, "") and message in err and len(err.strip().splitlines()) == 1
