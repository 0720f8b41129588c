"""A stand-in for S3 that all tests of this folder share, with a cache and a bucket's folder of each test's own."""

import itertools

import pytest

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server():
    for package, extra in (("s3fs", "s3"), ("moto.server", "test-cluster")):
        pytest.importorskip(package, reason=f"needs the extra `{extra}`: pip install 'stentor[{extra}]'")
    from s3_stand_in import StandIn

    server = StandIn()
    yield server
    server.stop()


@pytest.fixture
def s3(server, cache, monkeypatch):
    """A folder of this test's own on the stand-in, to which this process turns."""
    from s3_stand_in import Folder

    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    turn_to_environment()
    yield Folder(server, f"test{next(NUMBERS)}")
    turn_to_environment()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache; nothing that this process knows of files and connections of other tests."""
    pytest.importorskip("aiohttp", reason="needs aiohttp: pip install aiohttp")
    from stentor.data import storage_cache

    monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage_cache, "_known", {})
    return tmp_path / "cache"


@pytest.fixture
def through(s3, monkeypatch):
    """Puts a proxy before the stand-in, which cuts connections; answers it."""
    from s3_stand_in import CuttingProxy

    proxies = []

    def put(**options):
        proxies.append(CuttingProxy(s3.server.host, s3.server.port, **options))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxies[-1].port}")
        turn_to_environment()
        return proxies[-1]

    yield put
    for proxy in proxies:
        proxy.stop()


@pytest.fixture
def no_waits(monkeypatch):
    """Attempts follow each other at once; what they would have waited is listed."""
    from stentor.data import file_system

    waits: list[float] = []
    monkeypatch.setattr(file_system.time, "sleep", waits.append)
    return waits


def turn_to_environment() -> None:
    """s3fs reads its environment once, when a file system is made."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
