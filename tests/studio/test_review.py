"""Step 2 through its routes: what is found, corrected, removed, put back, moved."""

import json
import time

import numpy as np
import pytest
import soundfile
from studio_audio import unlisted

from stentor.data.outliers import KINDS
from stentor.studio.dataset import findings
from stentor.studio.dataset.findings import checked
from stentor.studio.texts import texts

RATE = 16000


def speech(seconds=2.0, seed=0, level=0.1):
    """Noise in syllables: wide band, with short pauses."""
    clock = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).standard_normal(len(clock))
    return (level * noise * (np.sin(2 * np.pi * 2 * clock) > -0.8)).clip(-0.99, 0.99).astype(np.float32)


@pytest.fixture
def dataset(projects):
    """Ten recordings: 0 clipped, 1 quiet, 2 without text, 3 a draft, 4 the same audio as 5, 6 too many words."""
    dataset = projects.create("voices", "en")
    for i in range(10):
        audio = speech(seed=5 if i == 4 else i)
        audio = np.clip(audio * 40, -1, 1) if i == 0 else audio * 0.01 if i == 1 else audio
        text = "" if i == 2 else "word " * 40 if i == 6 else f"sentence number {i}"
        more = {"draft": True} if i == 3 else {}
        dataset.add(audio, RATE, text, speaker="ann" if i % 2 else "ben", **more)
    return dataset


@pytest.fixture
def ids(dataset):
    return [r["id"] for r in dataset.records()]


def settled(dataset):
    """What is found when all were heard."""
    for _ in range(600):
        if (checked_set := checked(dataset)).measured == len(checked_set.rows):
            return checked_set
        time.sleep(0.05)
    raise AssertionError("the recordings were not heard")


def post(client, path, **fields):
    return client.post(f"/studio/check/voices/{path}", json=fields)


def test_what_is_wrong_comes_first(client, dataset, ids):
    settled(dataset)
    overview = client.get("/studio/check/voices").json()
    assert (overview["total"], overview["measured"], overview["speakers"], overview["removed"]) == (10, 10, 2, 0)
    assert overview["kinds"] == {"too_fast": 1, "no_text": 1, "same_audio": 1, "clipped": 1, "quiet": 1}
    assert overview["hours"] == pytest.approx(20 / 3600)
    wrong = [ids[i] for i in (6, 2, 5, 0, 1)]
    assert overview["order"][:6] == [*wrong, ids[3]] and set(overview["order"]) == set(ids)
    counts = {"all": 10, "remarks": 5, "unsure": 0, "drafts": 1, "no_text": 1, "train": 0, "held_out": 0} | {
        "trim": 0,
        "trimmed": 0,
    }
    assert overview["counts"] == counts
    for show, expected in (("remarks", wrong), ("drafts", [ids[3]]), ("no_text", [ids[2]]), ("clipped", [ids[0]])):
        assert client.get("/studio/check/voices", params={"show": show}).json()["order"] == expected
    assert client.get("/studio/check/voices", params={"find": "NUMBER 9"}).json()["order"] == [ids[9]]
    rows = client.get("/studio/check/voices/rows", params={"id": [ids[5], ids[0], "nobody"]}).json()["rows"]
    assert [r["id"] for r in rows] == [ids[5], ids[0]]
    assert rows[0]["remarks"] == [{"kind": "same_audio", "detail": "No. 5"}] and rows[0]["number"] == 6
    assert rows[1]["remarks"][0]["kind"] == "clipped" and rows[1]["measured"]


def test_a_remark_names_the_number_of_a_recording_not_its_file(dataset, ids):
    paths = [dataset.audio(dataset.record(ids[place])) for place in (3, 7, 8)]
    soundfile.write(paths[0], np.zeros(2 * RATE), RATE)
    soundfile.write(paths[1], np.zeros(RATE), RATE)
    paths[2].write_bytes(b"RIFF")
    rows = settled(dataset).rows
    details = [rows[ids[place]]["remarks"][0]["detail"] for place in (3, 7, 8)]
    assert [detail.split()[:2] for detail in details] == [["No.", "4"], ["No.", "8"], ["No.", "9"]]
    assert not any("audio/" in detail or "--" in detail for detail in details), details


def test_every_remark_has_a_text():
    assert {f"{part}_{kind}" for kind in KINDS for part in ("finding", "mend")} <= texts().keys()


def test_the_findings_are_those_of_prepare_check(dataset):
    from stentor.config.load import parse_source
    from stentor.dataloading.dataset_report import check

    ours = {kind: set(settled(dataset).chosen(kind)) for kind in KINDS}
    report = check({"set": parse_source(str(dataset.manifest))})
    assert {kind: flagged for kind, flagged in ours.items() if flagged} == {
        f.kind: {r["id"] for r in f.records} for f in report.findings
    }


def test_recordings_of_which_nothing_can_be_learned(client, projects):
    """No text at all, and machines' labels alone: it is said, and every recording without a text has a remark."""
    mute = projects.create("mute", "en")
    ids = [mute.add(speech(seed=i), RATE, "")["id"] for i in range(3)]
    found = settled(mute)
    assert len(found.chosen("no_text")) == len(found.chosen("remarks")) == found.kinds["no_text"] == 3
    assert found.useless == texts()["useless_no_text"]
    mute.suggest({id: {"text": "a guess", "label_source": "pseudo"} for id in ids})
    assert settled(mute).useless == texts()["useless_labels"]
    assert client.get("/studio/check/mute").json()["useless"] == texts()["useless_labels"]
    mute.edit(ids[0], text="a guess")
    assert settled(mute).useless == ""


@pytest.fixture
def pauses(projects):
    """A data set whose first recording has a second of silence before two seconds of speech and two after it, and
    times; the second has none."""
    dataset = projects.create("pauses", "en")
    quiet = lambda seconds: 1e-4 * np.random.default_rng(1).standard_normal(round(seconds * RATE))  # noqa: E731
    audio = np.concatenate([quiet(1), speech(), quiet(2)]).astype(np.float32)
    words = [{"word": "one", "start": 1.1, "end": 1.6}, {"word": "two", "start": 2.2, "end": 2.9}]
    segments = [{"speaker": "A", "text": "one two", "start": 0.5, "end": 4.5, "words": words}]
    dataset.add(audio, RATE, "one two", words=words, segments=segments)
    dataset.add(speech(seed=3), RATE, "no silence here")
    return dataset


def test_silence_is_trimmed_and_put_back(client, pauses):
    before, sound = pauses.records(), pauses.audio(pauses.records()[0]).read_bytes()
    first, second = (record["id"] for record in before)
    found = settled(pauses)
    assert found.chosen("trim") == [first] and found.figures()["cut"] == pytest.approx(2.6, abs=0.2)
    answer = client.post("/studio/check/pauses/trim", json={"ids": [first, second, "nobody"]}).json()
    cut = answer["trimmed"][first]
    assert answer["trimmed"].keys() == {first} and cut == pytest.approx(2.6, abs=0.2)
    trimmed = pauses.record(first)
    assert trimmed["duration"] == pytest.approx(5 - cut, abs=0.01) == settled(pauses).rows[first]["seconds"]
    lead = 1.1 - trimmed["words"][0]["start"]
    assert lead == pytest.approx(0.8, abs=0.1) and trimmed["words"][1]["end"] == pytest.approx(2.9 - lead, abs=1e-3)
    (segment,) = trimmed["segments"]
    assert (segment["start"], segment["end"]) == (0.0, pytest.approx(trimmed["duration"], abs=0.01))
    assert segment["words"] == trimmed["words"]
    kept, whole = (soundfile.read(io)[0] for io in (pauses.audio(trimmed), pauses.audio(before[0])))
    at = round(lead * RATE)
    assert np.array_equal(kept, whole[at : at + len(kept)])
    row = settled(pauses).rows[first]
    assert row["trimmed"] and row["cut"] == pytest.approx(cut, abs=0.02) and not settled(pauses).chosen("trim")
    # Removed and put back, it can still be restored; restored, all is as it was.
    pauses.remove([first])
    pauses.put_back([first])
    assert client.post("/studio/check/pauses/whole", json={"ids": [first]}).json()["restored"] == [first]
    assert pauses.records() == before and pauses.audio(before[0]).read_bytes() == sound
    assert not unlisted(pauses)


def test_a_trimmed_recording_that_changes(client, pauses):
    """Another text loses the words of before; a new take, and removal for good, take the old file along; where somebody
    deleted it, undo refuses and nothing changes."""
    first = pauses.records()[0]["id"]
    trim = lambda: client.post("/studio/check/pauses/trim", json={"ids": [first]}).json()["trimmed"]  # noqa: E731
    settled(pauses)
    assert trim()
    pauses.edit(first, text="another text")
    client.post("/studio/check/pauses/whole", json={"ids": [first]})
    assert "words" not in pauses.record(first) and pauses.record(first)["duration"] == 5
    settled(pauses)
    assert trim()
    pauses.audio(pauses.record(first)["untrimmed"]).unlink()
    before = pauses.records()
    assert client.post("/studio/check/pauses/whole", json={"ids": [first]}).json()["restored"] == []
    assert pauses.records() == before
    pauses.redo(first, speech(seed=8), RATE)
    assert "untrimmed" not in pauses.record(first) and not unlisted(pauses)


def test_a_file_is_heard_once(dataset, ids, monkeypatch):
    settled(dataset)
    measured = []
    measure = findings.measure_file
    monkeypatch.setattr(findings, "measure_file", lambda *args: measured.append(args[0].name) or measure(*args))
    findings._measurements.cache_clear()  # as after a restart
    dataset.edit(ids[0], text="another")
    assert settled(dataset).kinds["clipped"] == 1 and not measured
    new = dataset.redo(ids[0], speech(seed=77), RATE)
    assert "clipped" not in settled(dataset).kinds and measured == [dataset.audio(new).name]
    # A file of measures that was damaged is made again.
    (dataset.folder / findings.SOUNDS).write_text('[1, 2]\n{"x"\n')
    findings._measurements.cache_clear()
    assert settled(dataset).kinds["quiet"] == 1 and len(measured) == 11


def test_texts_are_corrected_and_drafts_confirmed(client, dataset, ids):
    settled(dataset)
    answer = post(client, "edit", id=ids[6], text=" much\nshorter ").json()
    (row,) = answer["rows"]
    assert row["text"] == "much shorter" and not row["remarks"] and "too_fast" not in answer["kinds"]
    answer = post(client, "edit", id=ids[3]).json()  # right as it is
    (row,) = answer["rows"]
    assert not row["draft"] and row["text"] == "sentence number 3" and answer["counts"]["drafts"] == 0
    assert "draft" not in dataset.record(ids[3])
    html = "<img src=x onerror=alert(1)>"
    assert (
        post(client, "edit", id=ids[1], text=html).json()["rows"][0]["text"] == html == dataset.record(ids[1])["text"]
    )
    for fields in ({"id": ids[1], "text": 5}, {"id": ids[1], "text": "x" * 5001}, {"id": "nobody"}, {}, {"id": 7}):
        answer = post(client, "edit", **fields)
        assert answer.status_code == 400 and answer.json()["error"]
    assert client.post("/studio/check/voices/edit", content=b"[1]").status_code == 400
    assert client.post("/studio/check/voices/edit", content=b"x" * 200_000).status_code == 413
    assert dataset.record(ids[1])["text"] == html


def test_a_confirmed_draft_keeps_its_word_times(dataset):
    words = [{"word": "one", "start": 0.1, "end": 0.5}]
    record = dataset.add(speech(seed=50), RATE, "one", words=words, draft=True)
    assert dataset.edit(record["id"], text="one")["words"] == words
    assert "words" not in dataset.edit(record["id"], text="two")


def test_a_recording_that_an_earlier_version_removed_can_be_put_back(dataset, ids):
    dataset.remove([ids[0]])
    (dataset.folder / "removed").mkdir()
    path = dataset.folder / dataset.removed()[0]["audio_path"]
    path.rename(dataset.folder / "removed" / path.name)
    dataset.put_back([ids[0]])
    assert dataset.record(ids[0])["id"] == ids[0] and path.is_file()


def test_removed_recordings_can_be_put_back(client, dataset, ids):
    before = dataset.records()
    sound = dataset.audio(before[4]).read_bytes()
    for i in (4, 5, 9):
        assert post(client, "remove", id=ids[i]).json()["total"] < 10
    assert [r["id"] for r in dataset.records()] == [ids[i] for i in (0, 1, 2, 3, 6, 7, 8)]
    assert not unlisted(dataset)
    removed = client.get("/studio/check/voices/removed").json()
    assert [r["id"] for r in removed["rows"]] == [ids[9], ids[5], ids[4]] and removed["removed"] == 3
    for i in (4, 9, 5):
        answer = post(client, "back", id=ids[i])
        assert answer.json()["rows"][0]["id"] == ids[i]
    assert dataset.records() == before and dataset.audio(before[4]).read_bytes() == sound
    assert client.get("/studio/check/voices/removed").json() == {"rows": [], "removed": 0}
    # Twice is once.
    post(client, "remove", id=ids[0])
    post(client, "remove", id=ids[0])
    assert post(client, "back", id=ids[0]).status_code == 200 and post(client, "back", id=ids[0]).status_code == 200
    assert dataset.records() == before


def test_removed_for_good(client, dataset, ids, monkeypatch):
    from stentor.studio import dataset_folder as module

    first, second = (dataset.audio(dataset.record(id)) for id in ids[:2])
    post(client, "remove", id=ids[0])
    assert client.post("/studio/check/voices/removed").json() == {"rows": [], "removed": 0}
    assert not first.exists()
    assert post(client, "back", id=ids[0]).status_code == 400
    post(client, "remove", id=ids[1])
    monkeypatch.setattr(module, "REMOVED_FOR", 0.0)  # as after thirty days
    post(client, "remove", id=ids[2])
    assert [r["id"] for r in dataset.removed()] == [ids[2]] and not second.exists()


def test_recordings_change_sides(client, dataset, ids):
    dataset.split(0.2)
    overview = client.get("/studio/check/voices").json()
    assert overview["divided"] == {"share": 0.2, "by": "text", "train": 7, "held_out": 2}
    held = client.get("/studio/check/voices", params={"show": "held_out"}).json()["order"]
    one = next(id for id in ids if id not in held and dataset.record(id).get("text"))
    answer = post(client, "move", id=one, side="held_out").json()
    assert answer["moved"] == [one] and answer["rows"][0]["side"] == "held_out" and answer["divided"]["held_out"] == 3
    lines = (dataset.folder / "held_out.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {*held, one}
    for id, side in ((one, "elsewhere"), (ids[2], "train"), ("nobody", "train")):
        assert post(client, "move", id=id, side=side).status_code == 400


def test_records_by_hand_are_told_and_never_trained_on(client, dataset, ids):
    lines = (
        {"id": "out", "audio_path": "../../../secret.wav", "text": "no"},
        {"id": "gone", "audio_path": "audio/gone.wav", "text": "was here", "duration": 1.0},
        {"id": "odd", "audio_path": "audio/gone.wav", "text": ["no", "string"], "duration": "long"},
        {"id": "seg", "audio_path": "audio/gone.wav", "text": "x", "segments": [{"speaker": "A"}], "untrimmed": 5},
    )
    with open(dataset.manifest, "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    settled(dataset)
    rows = client.get("/studio/check/voices/rows", params={"id": ["out", "gone", "odd", "seg"]}).json()["rows"]
    assert [r["remarks"][0]["kind"] for r in rows] == ["unusable"] * 4
    assert client.get("/studio/check/voices").json()["order"][:4] == ["out", "odd", "seg", "gone"]
    assert client.post("/studio/check/voices/whole", json={"ids": ["seg"]}).json()["restored"] == []
    assert str(dataset.folder) not in json.dumps(rows)
    trained = "".join(path.read_text() for path in dataset.parts().values())
    assert '"out"' not in trained and '"odd"' not in trained and ids[0] in trained


def test_other_requests_are_refused(client, dataset):
    assert client.get("/studio/check/nothing").status_code == 400
    assert client.get("/studio/check/..%2Fvoices").status_code in (400, 404)
    assert client.get("/studio/check/voices", params={"show": "everything"}).status_code == 400
    assert client.get("/studio/check/voices/rows", params={"id": ["x"] * 201}).status_code == 400


def test_the_least_certain_labels_come_first_and_a_correction_makes_them_a_persons(client, dataset, ids):
    labels = {
        ids[2]: {"text": "a machine heard this", "confidence": 0.9, "label_source": "pseudo", "round": 1},
        ids[3]: {"text": "and this", "confidence": 0.2, "label_source": "pseudo", "labelled_by": ["runs/a"]},
        ids[7]: {"text": "not what a person wrote", "confidence": 0.1, "label_source": "pseudo"},
        "elsewhere": {"text": "x", "confidence": 0.0},
    }
    assert dataset.suggest(labels) == 2  # 7 has a person's text
    settled(dataset)
    overview = client.get("/studio/check/voices", params={"show": "unsure"}).json()
    assert overview["order"] == [ids[3], ids[2]] and overview["counts"]["unsure"] == overview["counts"]["drafts"] == 2
    row = post(client, "edit", id=ids[3], text="and what a person heard").json()["rows"][0]
    assert row["confidence"] is None and not row["draft"]
    assert dataset.record(ids[3]).keys().isdisjoint(labels[ids[3]].keys() - {"text"})
    post(client, "edit", id=ids[2])  # it is right
    assert "label_source" not in dataset.record(ids[2]) and dataset.record(ids[2])["text"] == "a machine heard this"
    assert client.get("/studio/check/voices", params={"show": "unsure"}).json()["order"] == []
    assert dataset.record(ids[7])["text"] == "sentence number 7"
