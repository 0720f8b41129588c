"""Reading at addresses: read-ahead, broken connections, the cache, web servers, and what is said when it fails."""

import multiprocessing
import os
import random
import time

import pytest

from s3_stand_in import WebServer
from stentor.data import block_reader, file_system, storage_cache
from stentor.data.storage import as_path, find_paths, is_remote, open_read, upload
from stentor.data.storage_cache import local_copy, local_folder
from stentor.errors import ConfigError, DataError, MissingData, StentorError

MB = 2**20


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(block_reader, "BLOCK", MB)
    monkeypatch.setattr(block_reader, "SMALLEST", 2**16)


def data_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_local_paths_stay_what_they_are(tmp_path):
    assert type(as_path("a/b.jsonl")) is type(tmp_path)
    assert as_path(f"file://{tmp_path}/x") == tmp_path / "x"
    assert is_remote("s3://bucket/x") and not is_remote(tmp_path) and not is_remote("C:/x") and not is_remote("a://")
    assert local_copy(tmp_path) is tmp_path and local_folder(tmp_path) is tmp_path


def test_an_address_has_the_interface_of_a_path(s3):
    for name in ("b.tar", "a b.jsonl", "deep/c.wav"):
        s3.put(f"{name}", name.encode())
    folder = as_path(s3.url())
    file = folder / "a b.jsonl"
    assert (file.name, file.suffix, file.parent, str(file)) == ("a b.jsonl", ".jsonl", folder, s3.url(f"{file.name}"))
    assert file.exists() and file.is_file() and not file.is_dir() and folder.is_dir() and not (folder / "no").exists()
    assert file.read_text() == "a b.jsonl" and file.stat().st_size == 9 and file.absolute() == file
    assert [p.name for p in folder.iterdir()] == ["a b.jsonl", "b.tar", "deep"]
    assert list(folder.rglob("*.wav")) == [folder / "deep" / "c.wav"] == find_paths(f"{folder}/*/c.*")
    file.unlink()
    file.unlink(missing_ok=True)
    assert not file.exists()


def test_reading_goes_on_where_connections_break(s3, through, small_blocks, no_waits):
    data = data_of(4 * MB + 12345)
    path = as_path(s3.put("shard.tar", data))
    proxy = through(cut_after=300_000)
    with open_read(path) as file:
        assert file.read(10) == data[:10]
        assert file.read() == data[10:]
        assert proxy.sent < 1.2 * len(data)  # nothing comes twice but what was on its way
        file.seek(-7, os.SEEK_END)
        assert file.read() == data[-7:]
        file.seek(2 * MB)
        assert file.read(5) == data[2 * MB : 2 * MB + 5]
    assert proxy.cuts > 5 and max(no_waits) <= 26
    assert local_copy(path).read_bytes() == data


def test_a_server_that_stays_away_is_said(s3, through, small_blocks, no_waits, capsys):
    path = as_path(s3.put("shard.tar", data_of(2 * MB)))
    proxy = through()
    with open_read(path) as file, pytest.raises(DataError, match=r"10 times in a row.*Check the network"):
        proxy.cut_after = 0
        file.read()
    assert len(no_waits) >= 9
    assert f"Waiting for {path}" in capsys.readouterr().err


def test_a_cached_file_is_fetched_once(s3, through, small_blocks, cache):
    data = data_of(3 * MB)
    path = as_path(s3.put("shard.tar", data))
    proxy = through()
    assert local_copy(path).read_bytes() == data
    fetched = proxy.requests[f"GET /{s3.bucket}/{s3.folder}/shard.tar"]
    assert fetched == 3  # blocks
    storage_cache._known.clear()  # as in a process of its own
    assert local_copy(path).read_bytes() == data
    assert proxy.requests[f"GET /{s3.bucket}/{s3.folder}/shard.tar"] == fetched
    s3.put("shard.tar", data[::-1])
    assert local_copy(path).read_bytes() == data  # one version for the life of a process
    storage_cache._known.clear()
    assert local_copy(path).read_bytes() == data[::-1]


def _copy(path, barrier, answers):
    barrier.wait()
    answers.put(local_copy(path).read_bytes())


def test_processes_that_want_the_same_file_share_one_download(s3, through, small_blocks):
    data = data_of(3 * MB)
    path = as_path(s3.put("shard.tar", data))
    proxy = through()
    assert path.exists()  # the file system is in use before the fork
    fork = multiprocessing.get_context("fork")
    barrier, answers = fork.Barrier(3), fork.Queue()
    workers = [fork.Process(target=_copy, args=(path, barrier, answers)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=60) for _ in workers] == [data] * 3
    for worker in workers:
        worker.join()
    assert proxy.requests[f"GET /{s3.bucket}/{s3.folder}/shard.tar"] == 3


def test_the_cache_keeps_its_size_and_what_is_in_use(s3, cache, monkeypatch):
    monkeypatch.setenv("STENTOR_CACHE_GB", "0.0025")
    monkeypatch.setattr(storage_cache, "PINNED", 1)
    paths = [as_path(s3.put(f"{i}.tar", data_of(1_000_000, i))) for i in range(5)]
    first = local_copy(paths[0])
    with first.open("rb") as in_use:
        for i, path in enumerate(paths):
            assert local_copy(path).read_bytes() == data_of(1_000_000, i)
            time.sleep(0.01)
            assert sum(p.stat().st_size for p in (cache / "files").iterdir()) <= 2_500_000
        assert not first.exists() and in_use.read() == data_of(1_000_000, 0)
    assert local_copy(paths[0]).read_bytes() == data_of(1_000_000, 0)  # again
    monkeypatch.setenv("STENTOR_CACHE_GB", "much")
    with pytest.raises(ConfigError, match="STENTOR_CACHE_GB must be a number"):
        local_copy(as_path(s3.put("new.tar", b"x")))


def test_a_folder_is_copied_whole(s3, cache):
    for name in ("config.json", "onnx/model.onnx"):
        s3.put(f"model/{name}", name.encode())
    folder = local_folder(as_path(s3.url("model")))
    assert (folder / "config.json").read_text() == "config.json"
    assert (folder / "onnx" / "model.onnx").read_text() == "onnx/model.onnx"
    assert local_folder(as_path(s3.url("model/"))) == folder
    with pytest.raises(MissingData):
        local_folder(as_path(s3.url("none")))


@pytest.mark.parametrize("ranges", [False, True])
def test_web_servers(tmp_path, cache, small_blocks, ranges):
    data = data_of(2 * MB + 99)
    (tmp_path / "web" / "a b").mkdir(parents=True)
    (tmp_path / "web" / "a b" / "x.tar").write_bytes(data)
    web = WebServer(tmp_path / "web", ranges)
    path = as_path(f"{web.url}/a b/index.lst").parent / "x.tar"
    with open_read(path) as file:
        assert file.read() == data
    assert local_copy(path).read_bytes() == data
    assert path.exists() and not (path.parent / "y.tar").exists()
    with pytest.raises(MissingData, match="does not exist"):
        open_read(path.parent / "y.tar")
    with pytest.raises(ConfigError, match="web servers list no folders"):
        local_folder(path.parent)
    with pytest.raises(ConfigError, match="cannot be written"):
        upload(tmp_path / "web" / "a b" / "x.tar", path)
    web.stop()


def test_a_refusal_is_said_once_and_without_secrets(tmp_path, cache, no_waits):
    web = WebServer(tmp_path, status=403)
    path = as_path(f"{web.url}/x.jsonl?X-Amz-Signature=0123456789abcdef&X-Amz-Credential=who")
    with pytest.raises(DataError, match=r"access is denied.*Check the credentials") as refused:
        open_read(path)
    assert "0123456789abcdef" not in str(refused.value) and no_waits == []
    web.stop()


@pytest.mark.long
def test_an_upload_is_there_whole_or_not_at_all(s3, through, no_waits, tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(data_of(MB))
    upload(tmp_path / "x", as_path(s3.url("deep/x")))
    assert s3.get("deep/x") == data_of(MB)
    with pytest.raises(MissingData, match="s3://no-such-bucket/x does not exist"):
        upload(tmp_path / "x", as_path("s3://no-such-bucket/x"))
    through(cut_after=0)
    monkeypatch.setattr(file_system, "ATTEMPTS", 2)
    with pytest.raises(StentorError, match="cannot be written: the connection failed"):
        upload(tmp_path / "x", as_path(s3.url("other")))
    assert s3.names() == ["deep/x"]


def test_what_is_missing_is_one_sentence(s3, attempt, tmp_path):
    code, said = attempt("prepare", "check", "s3://no-such-bucket/train.jsonl", "--to", tmp_path / "check")
    assert code == 3 and said.strip() == (
        "stentor: s3://no-such-bucket/train.jsonl does not exist: check the bucket and the path."
    )
    code, said = attempt("train", s3.url("run.yaml"))
    assert code == 2 and f"{s3.url()}/run.yaml does not exist: check the bucket and the path." in said
    code, said = attempt("transcribe", s3.url("run"), "a.wav")
    assert code == 2 and said.strip() == f"stentor: There is no model at {s3.url()}/run: check the bucket and the path."
    code, said = attempt("prepare", "check", "nothing://x/train.jsonl", "--to", tmp_path / "check")
    assert code == 2 and "Addresses that begin with nothing:// are not supported" in said


def test_a_missing_package_is_one_sentence(attempt, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    code, said = attempt("prepare", "check", "gs://bucket/train.jsonl", "--to", tmp_path / "check")
    assert code == 2
    assert said.strip() == (
        "stentor: gs://bucket/train.jsonl needs gcsfs, which is not installed: pip install 'stentor[gs]'."
    )
