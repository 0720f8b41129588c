"""Secrets of addresses: passwords and signatures are neither shown nor written."""

import json
import shutil

import pytest

from stentor.errors import without_secrets

AWS = (
    "https://b.s3.amazonaws.com/a.jsonl?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20130524%2Fus"
    "-east-1&X-Amz-Date=20130524T000000Z&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f"
)
AZURE = (
    "https://a.blob.core.windows.net/c/a.wav?sv=2022-11-02&sp=r&sig=Z%2FRHIX5Xcg0Mq2rqI3OlWTjEg2tYkboXr1P9ZUXDtkk%3D"
)
GOOGLE = "https://storage.googleapis.com/b/a.wav?X-Goog-Signature=247a2aa45f169edf4d187d54e7cc46e4731b1e6273242c4f4c39a1d2507a"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("ftp://ann:hunter2@host/x", "ftp://***@host/x"),
        ("ftp://ann:hun@ter2@host:21/x", "ftp://***@host:21/x"),
        ("https://host/a.wav?token=abc123&part=2", "https://host/a.wav?token=***&part=2"),
        ('{"path": "https://h/a?access_token=abc123"}', '{"path": "https://h/a?access_token=***"}'),
        (AZURE, AZURE.partition("sig=")[0] + "sig=***"),
        (GOOGLE, GOOGLE.partition("=")[0] + "=***"),
    ],
)
def test_secrets_of_addresses_are_taken_out(text, clean):
    assert without_secrets(text) == clean
    assert without_secrets(f"- path: {text}\n  limit: 3") == f"- path: {clean}\n  limit: 3"


def test_signed_addresses_of_s3():
    assert "AKIDEXAMPLE" not in without_secrets(AWS) and "aeeed9" not in without_secrets(AWS)
    assert "X-Amz-Date=20130524T000000Z" in without_secrets(AWS)


@pytest.mark.parametrize(
    "text", ["a token= of love", "write to me@here.org", "https://h/x?page=2", "s3://bucket/a@b.wav"]
)
def test_other_text_stays(text):
    assert without_secrets(text) == text


def test_passwords_are_not_shown(attempt, tiny):
    code, shown = attempt("train", tiny(), "data.train.0.path=https://ann:hunter22@host/x.jsonl")
    assert code == 2 and "hunter22" not in shown and "looks like a password" in shown
    code, shown = attempt("evaluate", "runs/x", "--data", "https://ann:hunter22@host/x.jsonl", "--wrong")
    assert code == 2 and "hunter22" not in shown


def test_no_file_of_a_run_holds_a_signature(tiny, corpus, attempt, cli, tmp_path):
    """The folder's name is that of a signed address, and one of its files cannot be read, so that it is named."""
    data = tmp_path / "data?X-Amz-Signature=5ecret5ecret"
    shutil.copytree(corpus, data)
    records = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    records[0]["duration"] = 1.0
    (data / records[0]["audio_path"]).write_bytes(b"RIFF\0\0\0\0WAVEjunk")
    (data / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    config = tiny()
    config.write_text(config.read_text().replace(str(corpus), str(data)))
    code, shown = attempt("config", "show", config)
    assert code == 0 and "X-Amz-Signature=***" in shown and "5ecret5ecret" not in shown
    done = cli("train", config, "data.max_bad=0.5")
    assert "5ecret5ecret" not in done.stdout + done.stderr
    holding = [
        str(path.relative_to(tmp_path))
        for path in (tmp_path / "runs").rglob("*")
        if path.is_file() and b"5ecret5ecret" in path.read_bytes()
    ]
    assert not holding and "X-Amz-Signature=***" in (tmp_path / "runs" / "run" / "resolved.yaml").read_text()
    assert "is finished" in cli("train", config, "data.max_bad=0.5").stdout
