"""Data sets of the studio: what is on the disk after everything that can go wrong."""

import errno
import json
import os
import threading

import numpy as np
import pytest
import soundfile
from studio_audio import RATE, tone, unlisted

from stentor.errors import AudioError, ConfigError, StentorError
from stentor.studio import files, train_test_split
from stentor.studio.files import clean_text, inside, name_from

TRAVERSALS = ["../x", "..", ".", "/etc/passwd", "a/../../x", "a/./b", "a\\b", "", "a\0b", "a//b"]


@pytest.fixture
def full_disk(monkeypatch):
    """Every write to the disk from now on ends as on a full one."""

    def fill():
        def refuse(handle):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files.os, "fsync", refuse)

    return fill


def everything(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def test_recordings_are_saved_as_they_are_made(voices):
    audio = tone()
    first = voices.add(audio, RATE, " Guten\tTag\n ", speaker="Ann", prompt="de-07")
    second = voices.add(tone(0.5, 16000), 16000, "zwei", language="nl")
    assert first["text"] == "Guten Tag" and first["language"] == "de" and second["language"] == "nl"
    assert first["speaker"] == "Ann" and first["prompt"] == "de-07" and first["duration"] == 1.0
    lines = [json.loads(line) for line in (voices.folder / "manifest.jsonl").read_text().splitlines()]
    assert lines == voices.records() == [first, second]
    info = soundfile.info(voices.audio(first))
    assert (info.samplerate, info.subtype, info.channels) == (RATE, "PCM_16", 1)
    assert np.abs(soundfile.read(voices.audio(first))[0] - audio).max() <= 0.5001 / 32768
    # What is written is a manifest that training reads.
    from stentor.config.load import parse_source

    cuts = list(parse_source(str(voices.manifest)).cuts())
    assert [c.supervisions[0].text for c in cuts] == ["Guten Tag", "zwei"] and cuts[0].duration == 1.0


def test_redo_edit_remove(voices):
    one, two = voices.add(tone(), RATE, "eins", draft=True), voices.add(tone(), RATE, "zwei")
    before = voices.audio(one)
    new = voices.redo(one["id"], tone(2.0, 8000), 8000)
    assert new["id"] == one["id"] and new["text"] == "eins" and new["duration"] == 2.0
    assert not before.exists() and soundfile.info(voices.audio(new)).samplerate == 8000
    assert [r["id"] for r in voices.records()] == [one["id"], two["id"]]
    edited = voices.edit(one["id"], text="<script>alert(1)</script>")
    assert edited["text"] == "<script>alert(1)</script>" and "draft" not in edited
    with pytest.raises(ConfigError, match="audio_path of a recording cannot be edited"):
        voices.edit(one["id"], audio_path="/etc/passwd")
    voices.remove([one["id"], "nobody"])
    assert voices.records() == [two] and [r["id"] for r in voices.removed()] == [one["id"]]
    with pytest.raises(ConfigError, match="not in voices"):
        voices.edit(one["id"], text="x")


def test_what_belongs_to_the_record_cannot_be_overwritten(voices):
    record = voices.add(tone(), RATE, "eins", audio_path="/etc/passwd", id="../x")
    assert voices.audio(record).is_relative_to(voices.folder) and ".." not in record["id"]


@pytest.mark.parametrize("part", TRAVERSALS)
def test_paths_that_lead_out(tmp_path, part):
    with pytest.raises(ConfigError):
        inside(tmp_path, part)
    with pytest.raises(ConfigError):
        inside(tmp_path, "a", part)


def test_links_that_lead_out(projects, voices, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "dataset.json").write_text("{}")
    (projects.folder / "datasets" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="leads out"):
        projects.dataset("link")
    (voices.folder / "audio" / "x.wav").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="leads out"):
        voices.audio({"audio_path": "audio/x.wav"})
    moved = voices.folder / "audio"
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="leads out"):
        voices.audio({"audio_path": "audio/y.wav"})


def test_names_of_data_sets_are_taken_once(projects, voices):
    for name in ("voices", "Voices"):
        with pytest.raises(ConfigError, match="already"):
            projects.create(name)
    assert projects.datasets() == ["voices"] and projects.dataset("voices").about["language"] == "de"
    voices.describe(licence="CC0-1.0")
    assert projects.dataset("voices").about["licence"] == "CC0-1.0" and voices.about["language"] == "de"
    projects.delete("voices")
    assert projects.datasets() == [] and not list(projects.tmp.iterdir())
    with pytest.raises(ConfigError, match="no data set voices"):
        projects.dataset("voices")


def test_many_tabs_lose_nothing(voices):
    def record_five(who):
        for i in range(5):
            record = voices.add(tone(0.1, 8000), 8000, f"{who} {i}")
            if i == 3:
                voices.edit(record["id"], text=f"{who} three")
            if i == 4:
                voices.remove([record["id"]])

    threads = [threading.Thread(target=record_five, args=(w,)) for w in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {f"{who} {i}" for who in "abcd" for i in (0, 1, 2, "three")}
    assert {r["text"] for r in voices.records()} == texts and len(voices.records()) == 16
    assert not unlisted(voices)


def test_a_full_disk_changes_nothing(voices, full_disk, projects):
    record = voices.add(tone(), RATE, "eins")
    before = everything(voices.folder)
    full_disk()
    for change in (
        lambda: voices.add(tone(), RATE, "zwei"),
        lambda: voices.redo(record["id"], tone(), RATE),
        lambda: voices.edit(record["id"], text="neu"),
        lambda: voices.remove([record["id"]]),
        lambda: projects.create("more"),
    ):
        with pytest.raises(StentorError, match=r"disk with .* is full: nothing was changed. Make room"):
            change()
        assert everything(voices.folder) == before
    assert projects.datasets() == ["voices"]


def test_a_disk_that_fills_up_before_the_manifest(voices, monkeypatch):
    """The WAV file still fits, its line does not."""
    voices.add(tone(), RATE, "eins")
    before = everything(voices.folder)
    fsync, calls = os.fsync, []

    def third(handle):  # the file, its folder, then the manifest
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", third)
    with pytest.raises(StentorError, match="is full"):
        voices.add(tone(), RATE, "zwei")
    assert everything(voices.folder) == before and len(calls) == 3


def test_what_a_killed_process_leaves(voices):
    one = voices.add(tone(), RATE, "eins")
    with open(voices.manifest, "a") as file:
        file.write('{"id": "half", "audio_path": "audi')
    (voices.folder / "audio" / "orphan.wav").write_bytes(b"")
    assert voices.records() == [one] and unlisted(voices) == ["orphan.wav"]
    two = voices.add(tone(), RATE, "zwei")
    assert voices.records() == [one, two]
    # A line that somebody added with an editor, without its newline, is kept.
    voices.manifest.write_text(voices.manifest.read_text().rstrip("\n"))
    three = voices.add(tone(), RATE, "drei")
    assert voices.records() == [one, two, three]
    voices.manifest.write_text("nonsense\n" + voices.manifest.read_text())
    with pytest.raises(StentorError, match=r"voices/manifest.jsonl:1: "):
        voices.records()


def sides(paths):
    return {p: [json.loads(line)["id"] for line in paths[p].read_text().splitlines()] for p in ("train", "held_out")}


def test_split_holds_sentences_or_voices_together(voices):
    for speaker in ("ann", "ben", "cleo"):
        for text in ("Eins.", "zwei", *(f"{i} von {speaker}" for i in range(3))):
            voices.add(tone(0.1, 8000), 8000, text if speaker == "ann" else text.lower().strip("."), speaker=speaker)
    voices.add(tone(0.1, 8000), 8000, "")
    of = {r["id"]: r for r in voices.records()}
    for by, key in (("text", "text"), ("speaker", "speaker")):
        divided = sides(voices.split(by=by, share=0.25))
        train, held = ({of[id][key].lower().strip(".") for id in divided[p]} for p in ("train", "held_out"))
        assert len(divided["train"]) + len(divided["held_out"]) == 15 and train and held and not train & held
        assert sides(voices.split(by=by, share=0.25)) == divided == sides(voices.parts())
        assert voices.about["split"] == {"by": by, "share": 0.25}
    for share, by in ((0, "text"), (1, "text"), (0.1, "length")):
        with pytest.raises(ConfigError):
            voices.split(share, by)


def spoken(clips, texts, speakers=1):
    """Records of clips, as the division knows them: each speaker says all texts again and again."""
    return [
        {"id": f"{i:04d}", "text": texts[i % len(texts)], "speaker": f"s{i // len(texts) % speakers}"}
        for i in range(clips)
    ]


@pytest.mark.parametrize("clips, speakers", [(300, 1), (63, 1), (300, 6), (20, 1)])
@pytest.mark.parametrize("by", ["text", "speaker"])
def test_no_digit_is_missing_in_training(clips, speakers, by):
    if by == "speaker" and speakers == 1:
        pytest.skip("nobody to hold out")
    digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    records = spoken(clips, digits, speakers)
    sides = train_test_split.drawn(records, 0.1, by)
    held = [r for r in records if sides[r["id"]] == "held_out"]
    assert {r["text"] for r in records if r not in held} == set(digits)
    assert 0.05 * clips <= len(held) <= max(0.15, 1 / speakers if by == "speaker" else 0) * clips
    # Nor when another word comes that was said once.
    more = [*records, {"id": "new", "text": "ten", "speaker": "s9"}]
    sides = train_test_split.updated(more, 0.999 if clips > 20 else 0.001, by, sides)
    assert {r["text"] for r in more if sides[r["id"]] == "train"} >= {*digits, "ten"} and "held_out" in sides.values()


def test_voices_are_held_out_where_they_are_named(voices):
    sentences = [f"sentence number {i} of many" for i in range(60)]
    assert train_test_split.suggested(spoken(60, sentences[:10], 6)) == "speaker"
    assert train_test_split.suggested(spoken(60, sentences[:10], 2)) == "text"
    assert train_test_split.suggested([{"id": "x", "text": "y"}, *spoken(60, sentences[:10], 6)]) == "text"
    for i, text in enumerate(sentences[:12]):
        voices.add(tone(0.1, 8000), 8000, text, speaker=f"s{i % 4}")
    assert voices.division() == (0.1, "speaker")
    held = sides(voices.parts())["held_out"]
    assert len({voices.record(id)["speaker"] for id in held}) == 1 and len(held) == 3
    voices.add(tone(0.1, 8000), 8000, "nobody knows who said this")
    assert voices.division() == (0.1, "speaker") == (voices.about["split"]["share"], voices.about["split"]["by"])


def test_too_little_to_measure_by_is_told(voices):
    from stentor.studio.steps.shared import few_held_out

    assert few_held_out(voices) == ""
    for i in range(12):
        voices.add(tone(0.1, 8000), 8000, f"sentence number {i} of many")
    voices.split(share=0.2)
    assert "about 10 words" in few_held_out(voices) and "30 %" in few_held_out(voices)
    for i in range(12):
        voices.edit(voices.records()[i]["id"], text=f"{i} " + "one two three four five six seven " * 5)
    assert few_held_out(voices) == ""


def test_the_parts_stay_when_recordings_come_and_go(voices):
    with pytest.raises(ConfigError, match="there is none"):
        voices.parts()
    ids = [voices.add(tone(0.1, 8000), 8000, f"Satz {i}")["id"] for i in range(20)]
    first = sides(voices.parts())
    assert len(first["held_out"]) == 2 and len(first["train"]) == 18
    # A person's own choice, then new recordings, corrections and removals.
    voices.move(first["train"][0], "held_out")
    before = voices.sides()
    more = [voices.add(tone(0.1, 8000), 8000, f"noch {i}")["id"] for i in range(30)]
    again = voices.add(tone(0.1, 8000), 8000, f"satz {ids.index(first['held_out'][0])}!")["id"]
    voices.edit(ids[5], text="ein anderer Satz")
    voices.remove([ids[7]])
    after = voices.sides()
    assert {id: after[id] for id in before if id != ids[7]} == {id: s for id, s in before.items() if id != ids[7]}
    assert after[again] == "held_out" and 0 < sum(after[id] == "held_out" for id in more) < 12
    divided = sides(voices.parts())
    assert {id: side for side, members in divided.items() for id in members} == after == voices.sides()
    assert next(map(json.loads, voices.parts()["train"].read_text().splitlines())) in voices.records()
    # The same files when nothing has changed.
    stamps = [path.stat().st_mtime_ns for path in voices.parts().values()]
    assert [path.stat().st_mtime_ns for path in voices.parts().values()] == stamps
    voices.put_back([ids[7]])
    assert voices.sides()[ids[7]] in ("train", "held_out")


def test_a_side_that_lost_its_last_recording_gets_another(voices):
    ids = [voices.add(tone(0.1, 8000), 8000, f"Satz {i}")["id"] for i in range(4)]
    held = sides(voices.parts())["held_out"]
    voices.remove(held)
    assert all(sides(voices.parts()).values())
    with pytest.raises(ConfigError, match="all that this side has"):
        voices.move(sides(voices.parts())["held_out"][0], "train")
    voices.remove(ids)
    with pytest.raises(ConfigError, match="cannot be divided"):
        voices.parts()
    assert voices.sides() == {}


def test_a_sentence_moves_as_a_whole(voices):
    ids = [voices.add(tone(0.1, 8000), 8000, text)["id"] for text in ("eins", "zwei", "Eins!", "drei", "vier")]
    voices.parts()
    voices.move(ids[1], "held_out")
    voices.move(ids[3], "train")
    side = {"train": "held_out", "held_out": "train"}[voices.sides()[ids[0]]]
    assert set(voices.move(ids[2], side)) == {ids[0], ids[2]}
    assert voices.sides()[ids[0]] == voices.sides()[ids[2]] == side
    with pytest.raises(ConfigError, match="to train or held_out"):
        voices.move(ids[0], "/etc")


def test_audio_that_cannot_be_kept(voices):
    for audio, rate, error in (
        (np.zeros(0, np.float32), 16000, AudioError),
        (np.array([0, np.nan], np.float32), 16000, AudioError),
        (tone(), 10, ConfigError),
    ):
        with pytest.raises(error):
            voices.add(audio, rate, "x")
    with pytest.raises(ConfigError, match="too long: at most 5000"):
        voices.add(tone(), RATE, "x" * 5001)
    assert voices.records() == [] and not list((voices.folder / "audio").iterdir())


def test_texts_are_cleaned():
    assert clean_text("\ufeff a\u0308 \x00\x1b[31m b\r\nc\u2028d\ud800 ") == "ä [31m b c d"
    assert name_from("../../Grüße, <b>Welt</b>.wav") == "Grüße-b-Welt-b-wav" and name_from("…") == "recording"
