"""Verbs whose inputs and outputs are addresses."""

import json
import shutil

import pytest

from s3_stand_in import WebServer


@pytest.fixture
def on_s3(s3, corpus):
    return s3.put_folder("corpus", corpus)


def test_recordings_and_transcripts(s3, on_s3, whisper, corpus, here, attempt, tmp_path):
    model = s3.put_folder("whisper", whisper)
    here(
        "transcribe", whisper, corpus / "dev0.wav", corpus / "dev1.wav", "--format", "json", "--out", tmp_path / "local"
    )
    out = s3.url("out")
    here("transcribe", model, f"{on_s3}/dev0.wav", f"{on_s3}/dev[1].wav", "--format", "json", "--out", out)
    for name in ("dev0.json", "dev1.json"):
        local, there = json.loads((tmp_path / "local" / name).read_text()), json.loads(s3.get(f"out/{name}"))
        assert there == local | {"audio": f"{on_s3}/{name[:4]}.wav", "model": model}
    again = attempt("transcribe", model, f"{on_s3}/dev0.wav", "--format", "json", "--out", out, "--skip-existing")
    assert again[0] == 0 and "1 of 1 files have their outputs already" in again[1]
    code, said = attempt("transcribe", model, f"{on_s3}/none.wav", f"{on_s3}/dev2.wav", "--out", out)
    assert code == 3 and f"{on_s3}/none.wav does not exist" in said
    assert "out/dev2.txt" in s3.names()  # the others are done


def test_recordings_with_their_texts(s3, whisper, corpus, here, attempt, tmp_path):
    folder = tmp_path / "corpus"
    (folder / "anna").mkdir(parents=True)
    for i, text in enumerate(("one", "two three")):
        shutil.copy(corpus / f"dev{i}.wav", folder / "anna" / f"{i}.wav")
        (folder / "anna" / f"{i}.lab").write_text(text)
    there, out = s3.put_folder("corpus", folder), s3.url("out")
    here("align", whisper, folder, "--out", tmp_path / "local")
    here("align", whisper, there, "--out", out)
    for name in ("anna/0.json", "anna/1.json"):
        local = json.loads((tmp_path / "local" / name).read_text())
        audio = f"{there}/{name.removesuffix('.json')}.wav"
        assert json.loads(s3.get(f"out/{name}")) == local | {"audio": audio}
    code, said = attempt("align", whisper, there, "--out", out, "--skip-existing")
    assert code == 0 and "2 of 2 records are already done" in said


def test_prepared_data(s3, on_s3, corpus, here, tmp_path):
    """Word times to a manifest on S3 with its audio beside it; shards there of a manifest there; their way back."""
    out = s3.url("prepared")
    here(
        "prepare",
        "words",
        "type=synth,texts=[one two, three],count=2",
        "--engine",
        "voice",
        "--to",
        f"{out}/words.jsonl",
    )
    for data, count in ((f"{out}/words.jsonl", 2), (f"{on_s3}/train.jsonl", 16)):
        to = f"{out}/shards{count}"
        here("prepare", "tokens", data, "--codec", "none", "--rate", 16000, "--to", to, "--min-shards", 1)
        here("prepare", "check", f"{to}/data.lst", "--to", f"{to}/check")
        assert json.loads(s3.get(f"prepared/shards{count}/check/check.json"))["sets"][0]["records"] == count


def test_steps_of_a_run_file_are_done_once(s3, on_s3, tiny, here):
    data = "{type: synth, texts: [one two, three], count: 2}"
    step = f"prepare=[{{type: words, data: {data}, engine: voice, to: {on_s3}/w.jsonl}}]"
    assert "Preparing" in here("prepare", "run", tiny(), step)
    assert "corpus/w.jsonl.prepared.json" in s3.names()
    assert "Preparing" not in here("prepare", "run", tiny(), step)


def test_a_data_set_is_published_from_s3(s3, on_s3, here, attempt, tmp_path):
    s3.put("corpus/one.jsonl", json.dumps({"audio_path": "dev0.wav", "text": "one", "origin": on_s3}).encode())
    both = (f"test={on_s3}/dev.jsonl", f"train={on_s3}/one.jsonl")
    here("publish", "dataset", *both, "--dry-run", tmp_path / "out")
    assert "s3://" not in (tmp_path / "out" / "data" / "train" / "metadata.jsonl").read_text()
    clips = list((tmp_path / "out" / "data" / "test").rglob("*.wav"))
    assert sorted(clip.read_bytes() for clip in clips) == sorted(s3.get(f"corpus/dev{i}.wav") for i in range(4))
    s3.put("corpus/bad.jsonl", b'{"audio_path": "none.wav", "text": "one"}\n')
    code, said = attempt("publish", "dataset", f"{on_s3}/bad.jsonl", "--dry-run", tmp_path / "bad")
    assert code == 3 and f"bad.jsonl:1: {on_s3}/none.wav does not exist" in said


def test_annotated_recordings(s3, meetings, here, tmp_path):
    """RTTM, UEM and recordings by pattern."""
    folder = s3.put_folder("meetings", meetings)
    rttm = s3.put("meetings/a.rttm", b"SPEAKER dev0 1 0.5 1.0 <NA> <NA> low <NA> <NA>\n")
    spec = f"type=rttm,path={rttm.replace('a.rttm', '*.rttm')},audio={folder}/{{id}}.wav"
    here("prepare", "check", spec, "--to", tmp_path / "check")
    assert json.loads((tmp_path / "check" / "check.json").read_text())["sets"][0]["records"] == 1


def test_a_manifest_on_a_web_server(corpus, here, cache, tmp_path):
    web = WebServer(corpus)
    here("prepare", "check", f"{web.url}/dev.jsonl?token=abcdefgh", "--to", tmp_path / "check")
    assert json.loads((tmp_path / "check" / "check.json").read_text())["sets"][0]["records"] == 4
    assert "abcdefgh" not in (tmp_path / "check" / "check.json").read_text()
    assert web.requests["GET /dev0.wav"] >= 1
    web.stop()


def test_the_studio_takes_no_addresses_of_those_who_sign_in(tmp_path):
    """They would be read with the credentials, and in the network, of the studio's owner."""
    from stentor.sources.manifest import Jsonl
    from stentor.studio.runs.path_policy import _PathPolicy

    policy = _PathPolicy(tmp_path, [])
    assert [why for _, why in policy.section(Jsonl(path="s3://bucket/train.jsonl"), ())] != []
    (tmp_path / "m.jsonl").write_text('{"audio_path": "http://127.0.0.1/a.wav"}\n')
    ((_, why),) = policy.section(Jsonl(path="m.jsonl"), ())
    assert "names audio outside of its own folder" in why


def test_a_path_that_must_be_local_says_so(attempt, tiny):
    keys = "data.train.0={type: conversation, source: {type: jsonl, path: x.jsonl}, cache: 's3://bucket/cache'}"
    code, said = attempt("config", "check", tiny(), keys)
    assert code == 2 and "must be a local path, not a URL" in said
    shutil.rmtree("s3:", ignore_errors=True)
