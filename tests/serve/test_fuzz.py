"""Damaged uploads, clients that go and more requests than there is room for: the server stays, and keeps nothing."""

import os
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import pytest
from damaged import Upload, damaged_uploads, exchange, leave, request
from process import Served
from realtime import until

pytest.importorskip("av")
FINE = {0, 200, 400, 429}
"""Statuses; 0: the request was not whole, and its client has gone."""


def address(url):
    return urlsplit(url).hostname, urlsplit(url).port


def trickle(place: tuple[str, int], upload: Upload, parts: int = 20) -> int:
    """The status for a sender that sends a little at a time."""
    content = upload.content
    with socket.create_connection(place, timeout=120) as connection:
        for i in range(parts):
            connection.sendall(content[len(content) * i // parts : len(content) * (i + 1) // parts])
            time.sleep(0.01)
        return int(connection.recv(4096).split(b" ", 2)[1])


def test_some_damaged_uploads(talks, tone, tmp_path, monkeypatch):
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    place, service, good = address(talks.url), talks.service, tone("good.wav", (2, -10)).read_bytes()

    def text():
        return exchange(place, request(good, response_format="text"))

    uploads, random = damaged_uploads(500)[::5], np.random.default_rng(0)
    with ThreadPoolExecutor(4) as clients:
        assert set(clients.map(lambda _: text(), range(8))) == {(200, "level 10\n")}
        before = len(os.listdir("/proc/self/fd"))
        answers = list(clients.map(lambda upload: exchange(place, upload), uploads))
        assert {status for status, _ in answers} <= FINE, Counter(answers)
        assert Counter(status for status, _ in answers)[400] > 30
        for upload in uploads[:40]:
            leave(place, upload, random)
        assert trickle(place, request(good)) == 200
        assert set(clients.map(lambda _: text(), range(8))) == {(200, "level 10\n")}
    until(lambda: service.active == 0 and not list(temporary.iterdir()))
    until(lambda: service.decoders._idle.qsize() == service.readers + 1 and len(os.listdir("/proc/self/fd")) <= before)
    assert service.held.left == type(service.held).left


@pytest.mark.slow
def test_all_damaged_uploads_and_an_hour_of_requests(export, tone, tmp_path):
    """Prints what it counts: `pytest -s`."""
    good = request(tone("good.wav", (2, -10)).read_bytes(), response_format="verbose_json")
    with Served(export(), tmp_path / "temporary", "--max-requests", "256") as served, ThreadPoolExecutor(16) as clients:

        def good_answers(count: int) -> set[tuple[int, str]]:
            return set(clients.map(lambda _: exchange(served.address, good), range(count)))

        def settled(what: str) -> dict[str, int]:
            until(lambda: served.health()["requests"] == 0 and served.facts()["files"] == 0)
            print(f"{what}: {served.facts()}", flush=True)
            return served.facts()

        expected = good_answers(64)
        assert len(expected) == 1 and "level 10" in str(expected)
        before = settled("before")

        uploads = damaged_uploads(500)
        statuses = Counter(status for status, _ in clients.map(lambda u: exchange(served.address, u), uploads))
        print(f"damaged uploads by status: {dict(statuses)}")
        assert set(statuses) <= FINE and statuses[400] > 200
        assert good_answers(1) == expected
        damaged = settled("after 500 damaged uploads")

        dice = [np.random.default_rng([1, number]) for number in range(500)]
        gone = [*uploads[:250], *[good] * 250]
        list(clients.map(lambda upload, random: leave(served.address, upload, random), gone, dice))
        slow = Counter(clients.map(lambda _: trickle(served.address, good), range(32)))
        assert slow == {200: 32} and good_answers(1) == expected
        settled("after 500 disconnects and 32 slow senders")

        with ThreadPoolExecutor(1000) as many:
            answers = list(many.map(lambda _: exchange(served.address, good), range(1000)))
        statuses = Counter(status for status, _ in answers)
        print(f"1,000 at once by status: {dict(statuses)}")
        assert set(statuses) <= {200, 429} and statuses[200] >= 256
        assert {answer for answer in answers if answer[0] == 200} == expected
        burst = settled("after 1,000 at once")

        for _ in range(4):  # 3,600 requests, one of ten damaged
            assert good_answers(810) == expected
            list(clients.map(lambda u: exchange(served.address, u), uploads[:90]))
            after = settled("after 900 more")
        assert good_answers(1) == expected
        assert after["rss_mib"] < burst["rss_mib"] + 32 and damaged["rss_mib"] < before["rss_mib"] + 64
        assert after["descriptors"] <= before["descriptors"] + 8 and after["helpers"] <= before["helpers"] + 8
        assert after["threads"] <= burst["threads"] + 2
        assert "Traceback" not in served.log.read_text()
