"""The recording page's routes: rows of phrases, takes that are saved as they end, and what is refused."""

import io
import json
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from studio_audio import unlisted

from stentor.studio.dataset.prompts import phrases_of, prompt_id
from stentor.studio.dataset.recorder import MOST_BYTES, MOST_ROWS, PhraseRows

RATE = 16000
ROWS = "/studio/speak/voice/rows"


def wav(seconds=1.0, rate=RATE, level=0.1, seed=0):
    samples = level * np.random.default_rng(seed).standard_normal(int(seconds * rate))
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return data.getvalue()


@pytest.fixture
def dataset(client):
    return client.projects.create("voice", "en")


@pytest.fixture
def rows(client, dataset):
    return client.get(ROWS).json()["rows"]


def take(client, row, data=None, **params):
    text = params.pop("text", row["text"])
    query = {"row": row["key"], "text": text, **params}
    return client.post("/studio/speak/voice/take", params=query, content=wav() if data is None else data)


def edit(client, row, text):
    return client.post("/studio/speak/voice/text", params={"row": row["key"]}, content=text.encode())


def remove(client, row):
    return client.post("/studio/speak/voice/remove", params={"row": row["key"]})


def test_ten_rows_of_the_script(client, dataset, rows):
    script = phrases_of(dataset)
    assert [row["text"] for row in rows] == [row["phrase"] for row in rows] == script[:10]
    assert [row["number"] for row in rows] == list(range(1, 11))
    assert rows[0]["key"] == prompt_id(script[0], "en") and "id" not in rows[0]
    page = client.get(ROWS).json()
    assert (page["shown"], page["recorded"], page["seconds"], page["language"]) == (10, 0, 0, "en")


def test_ten_more_stay_and_go_on_after_the_script(client, dataset):
    script = phrases_of(dataset)
    client.post("/studio/speak/voice/more", params={"shown": 0})  # of another page: it hides no row
    shown = 20
    while shown <= len(script) + 10:
        page = client.post("/studio/speak/voice/more", params={"shown": shown}).json()
        assert len(page["rows"]) == 10 and page["rows"][0]["number"] == shown + 1
        shown += 10
        assert page["shown"] == shown == client.get(ROWS).json()["shown"]
    own_rows = client.get(ROWS, params={"offset": len(script), "count": 2}).json()["rows"]
    assert [(row["key"], row["text"]) for row in own_rows] == [("own-1", ""), ("own-2", "")]
    assert take(client, own_rows[1], text="My own words.").json()["row"]["text"] == "My own words."
    assert dataset.records()[0]["prompt"] == "own-2"


def test_a_take_is_saved_with_its_text(client, dataset, rows):
    data = wav(2.0, 44100)
    answer = take(client, rows[2], data, mark="a1").json()
    (record,) = dataset.records()
    assert record["text"] == rows[2]["text"] and record["prompt"] == rows[2]["key"] and record["duration"] == 2.0
    assert record["language"] == "en"
    assert set(record) == {"id", "audio_path", "text", "language", "prompt", "duration"}
    # What the browser sent is kept bit for bit, at its rate.
    with wave.open(str(dataset.audio(record))) as saved, wave.open(io.BytesIO(data)) as sent:
        assert saved.getframerate() == 44100 and saved.readframes(10**6) == sent.readframes(10**6)
    assert (answer["recorded"], answer["seconds"], answer["replaced"]) == (1, 2.0, False)
    assert answer["row"]["id"] == record["id"] and answer["row"]["seconds"] == 2.0
    assert -25 < answer["row"]["level"] < -15 and answer["row"]["peak"] > answer["row"]["level"]
    assert list(client.projects.tmp.iterdir()) == []


def test_what_was_heard_is_told_and_told_again_after_a_reload(client, rows):
    sentences = {r["key"]: r["sentence"] for r in take(client, rows[0], wav(level=1e-4)).json()["row"]["remarks"]}
    assert "microphone is chosen" in sentences["silent"]
    assert client.get(ROWS).json()["rows"][0]["remarks"] == [{"key": "silent", "sentence": sentences["silent"]}]
    for row, key, data in ((1, "clipped", wav(level=3.0)), (2, "short", wav(0.2)), (3, "long", wav(31.0))):
        assert key in [remark["key"] for remark in take(client, rows[row], data).json()["row"]["remarks"]]


def test_redo_replaces_and_forgets_what_was_heard(client, dataset, rows):
    first = take(client, rows[0], wav(level=1e-4)).json()["row"]
    second = take(client, rows[0], wav(seed=1), replaces=first["take"]).json()
    assert not second["replaced"] and second["row"]["id"] == first["id"] and second["row"]["take"] != first["take"]
    assert "silent" not in [r["key"] for r in second["row"]["remarks"]]
    assert len(dataset.records()) == 1 and len(list((dataset.folder / "audio").glob("*.wav"))) == 1
    dataset.redo(first["id"], np.full(RATE, 0.1, np.float32), RATE)  # elsewhere: its old remarks go
    assert "remarks" not in client.get(ROWS).json()["rows"][0]


def test_two_pages_one_row(client, dataset, rows):
    """The last take wins, and its page is told that there was another."""
    take(client, rows[0], wav(1.0))
    late = take(client, rows[0], wav(2.0), text="As I said it.").json()
    assert late["replaced"] and late["row"]["text"] == "As I said it."
    assert [r["duration"] for r in dataset.records()] == [2.0]
    remove(client, rows[0])  # and at the same moment:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: take(client, rows[0], wav(seed=i), mark=f"m{i}").json(), range(4)))
    assert sum(a["replaced"] for a in answers) == 3
    assert len(dataset.records()) == 1 and unlisted(dataset) == []


def test_sent_again_after_a_lost_answer_it_is_saved_once(client, dataset, rows):
    first = take(client, rows[0], mark="a1").json()
    again = take(client, rows[0], mark="a1").json()
    assert again["row"]["take"] == first["row"]["take"] and not again["replaced"]


def test_texts_before_and_after_recording(client, dataset, rows):
    assert edit(client, rows[0], "  What I\nsay ").json()["row"]["text"] == "What I say"
    row = client.get(ROWS).json()["rows"][0]
    assert row["text"] == "What I say" and row["phrase"] == rows[0]["phrase"] and dataset.records() == []
    assert edit(client, rows[0], "").json()["row"]["text"] == rows[0]["phrase"]
    assert not json.loads((dataset.folder / "rows.json").read_text())["texts"]
    take(client, rows[0])
    assert edit(client, rows[0], "Something else.").json()["row"]["text"] == "Something else."
    assert dataset.records()[0]["text"] == "Something else."
    edit(client, rows[0], "")
    assert dataset.records()[0]["text"] == rows[0]["phrase"]


def test_remove_leaves_the_text_on_its_row(client, dataset, rows):
    take(client, rows[0], text="Mine.")
    answer = remove(client, rows[0]).json()
    assert answer["recorded"] == 0 and "id" not in answer["row"] and answer["row"]["text"] == "Mine."
    assert dataset.records() == []
    assert client.get(ROWS).json()["rows"][0]["text"] == "Mine."
    assert remove(client, rows[0]).status_code == 200


def test_rows_that_are_recorded_are_shown(client, dataset):
    script = phrases_of(dataset)
    dataset.add(np.full(RATE, 0.1, np.float32), RATE, script[24], prompt=prompt_id(script[24], "en"))
    dataset.add(np.full(RATE, 0.1, np.float32), RATE, "uploaded")
    page = client.get(ROWS).json()
    assert page["shown"] == 30 and page["rows"][24]["id"] and page["recorded"] == 1


def test_a_changed_script_keeps_recordings_at_their_phrases(client, dataset, rows, monkeypatch):
    take(client, rows[0])
    script = ["A new one.", rows[0]["phrase"], "Another."]
    monkeypatch.setattr("stentor.studio.dataset.recorder.phrases_of", lambda dataset: script)
    shown = client.get(ROWS).json()["rows"]
    assert [row["text"] for row in shown[:4]] == [*script, ""]
    assert "id" in shown[1] and "id" not in shown[0]
    monkeypatch.setattr("stentor.studio.dataset.recorder.phrases_of", lambda dataset: script[2:])
    assert client.get(ROWS).json()["recorded"] == 0 and len(dataset.records()) == 1


def test_what_is_no_recording_is_refused(client, dataset, rows):
    """Beside the disguised files of test_security.py."""
    from stentor.audio.io import encode

    flac = encode(np.full(RATE, 0.1, np.float32), RATE, kind="flac")
    for data, status, words in (
        (b"", 400, "is empty"),
        (b"RIFF\0\0\0\0WAVE", 400, "."),
        (wav()[:20], 400, "."),
        (wav()[:44], 400, "."),
        (wav(rate=2000), 400, "2000 Hz"),
        (flac, 400, "no WAV file"),
        (wav(level=0.0), 400, "not muted"),
        (wav(181, 4000), 400, "181 s"),
        (wav() + bytes(MOST_BYTES), 413, "30 MB"),
    ):
        answer = take(client, rows[0], data)
        assert answer.status_code == status and words in answer.json()["error"]
        assert str(client.projects.folder) not in answer.json()["error"]
    assert dataset.records() == [] and list(client.projects.tmp.iterdir()) == []
    assert not list((dataset.folder / "audio").glob("*.wav"))


@pytest.mark.parametrize("key", ["", "..", "own-0", "own-100000", "b8a0d2027aad/..", "B8A0D2027AAD", "x" * 500, "<b>"])
def test_a_row_has_a_key_of_its_own(client, dataset, key):
    for answer in (
        take(client, {"key": key, "text": "x"}),
        edit(client, {"key": key}, "x"),
        remove(client, {"key": key}),
    ):
        assert answer.status_code == 400 and "no row" in answer.json()["error"]
    assert dataset.records() == []


def test_numbers_and_marks_are_checked(client, dataset, rows):
    for query in ({"offset": "-1"}, {"offset": "x"}, {"count": "0"}, {"count": "1e3"}, {"offset": str(MOST_ROWS + 1)}):
        assert client.get(ROWS, params=query).status_code == 400
    assert take(client, rows[0], mark="../x").status_code == 400
    assert take(client, rows[0], text="x" * 1001).status_code == 400
    assert edit(client, rows[0], "x" * 1001).status_code == 400
    assert edit(client, rows[0], "x" * 5000).status_code == 413
    assert dataset.records() == []


def test_audio_is_served_in_ranges(client, dataset, rows):
    data = wav()
    record = take(client, rows[0], data).json()["row"]
    url = f"/studio/audio/voice/{record['id']}"
    full = client.get(url)
    assert full.status_code == 200 and full.headers["content-type"] == "audio/wav"
    assert full.headers["x-content-type-options"] == "nosniff" and full.headers["accept-ranges"] == "bytes"
    assert len(full.content) == int(full.headers["content-length"]) and full.content[:4] == b"RIFF"
    part = client.get(url, headers={"Range": "bytes=100-199"})
    assert part.status_code == 206 and part.content == full.content[100:200]
    assert part.headers["content-range"] == f"bytes 100-199/{len(full.content)}"
    assert client.get(url, headers={"Range": "bytes=-10"}).content == full.content[-10:]
    assert client.get(url, headers={"Range": "bytes=99999999-"}).status_code == 416


def test_a_damaged_note_file_costs_only_the_notes(client, dataset, rows):
    take(client, rows[0], text="Mine.")
    (dataset.folder / "rows.json").write_text('{"shown": 40, "heard": [1, 2], "texts": "x"}')
    page = client.get(ROWS).json()
    assert page["shown"] == 40 and page["rows"][0]["text"] == "Mine." and "remarks" not in page["rows"][0]
    assert take(client, rows[1]).status_code == 200
    (dataset.folder / "rows.json").write_text('{"shown": "many"}')
    assert client.get(ROWS).json()["shown"] == 10
    (dataset.folder / "rows.json").write_bytes(b"\xff\0{")
    assert client.get(ROWS).json()["shown"] == 10


def test_a_full_disk_is_told_and_changes_nothing(client, dataset, rows, monkeypatch):
    import errno

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    take(client, rows[0])
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    answer = take(client, rows[1])
    assert answer.status_code == 400 and "is full" in answer.json()["error"]
    assert len(dataset.records()) == 1


def test_rows_read_the_manifest_once(client, dataset, rows, monkeypatch):
    from stentor.studio.projects import DataSet

    calls = []
    read = DataSet.records
    monkeypatch.setattr(DataSet, "records", lambda self: calls.append(1) or read(self))
    client.get(ROWS)
    assert len(calls) == 1


def test_a_language_without_phrases_has_rows_of_ones_own(client):
    client.projects.create("bare", "xx")
    page = client.get("/studio/speak/bare/rows").json()
    assert [row["key"] for row in page["rows"]] == [f"own-{i}" for i in range(1, 11)]
    assert PhraseRows(client.projects.dataset("bare")).keys[-1] == f"own-{MOST_ROWS}"
