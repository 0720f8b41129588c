"""A data set as it is published: what its folder holds, that others can load it, and what never gets into it."""

import json

import numpy as np
import pytest
import soundfile

from stentor.audio.io import write
from stentor.errors import DataError
from stentor.publish import hub as publishing
from stentor.publish.dataset import build

RATE = 16000
EVIL = '<script>alert("boo")</script>'


def tone(number, seconds=0.5, rate=RATE):
    time = np.arange(round(seconds * rate)) / rate
    return (0.25 * np.sin(2 * np.pi * 200 * (number + 1) * time)).astype(np.float32)


@pytest.fixture
def manifest(tmp_path):
    """Six records: three whole files of three kinds, two parts of a long file, one with an id that leads out."""
    folder = tmp_path / "voices"
    for i, kind in enumerate(("wav", "flac", "ogg")):
        write(folder / "audio" / f"{i}.{kind}", tone(i), RATE)
    write(folder / "long.wav", np.concatenate([tone(i, 1.0, 22050) for i in range(3)]), 22050)
    records = [
        {
            "id": f"r{i}",
            "audio_path": f"audio/{i}.{kind}",
            "text": f"text {i}",
            "language": "de",
            "speaker": "Änn",
            "origin_path": "/home/me/private",
            "note": "/home/me/x.wav",
            "mood": "glad",
        }
        for i, kind in enumerate(("wav", "flac", "ogg"))
    ]
    records += [
        {
            "audio_path": str(folder / "long.wav"),
            "start": 1.0,
            "duration": 1.0,
            "text": EVIL,
            "language": "en",
            "words": [{"word": EVIL, "start": 0.1, "end": 0.4}],
        },
        {"audio_path": "long.wav", "start": 2.0, "speaker": "b_*_", "split": "test", "text": "the rest"},
        {"id": "../../../out", "audio_path": "audio/0.wav", "text": "out", "split": "test", "speaker": "Änn"},
    ]
    path = folder / "manifest.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def rows_of(folder, split):
    return [json.loads(line) for line in (folder / "data" / split / "metadata.jsonl").read_text().splitlines()]


def test_the_folder(manifest, tmp_path):
    to = tmp_path / "made"
    remarks = build([str(manifest.parent)], to, "anna/voices", "cc-by-4.0")
    train, test = rows_of(to, "train"), rows_of(to, "test")
    assert [r["file_name"] for r in train] == [
        "0000/000000-r0.wav",
        "0000/000001-r1.flac",
        "0000/000002-r2.ogg",
        "0000/000003-long.flac",
    ]
    assert all(list(r) == list(train[0]) for r in train)
    assert list(train[0])[:6] == ["file_name", "id", "text", "language", "speaker", "duration"]
    assert train[3]["text"] == EVIL and train[3]["speaker"] is None and train[0]["mood"] == "glad"
    # Whole files byte by byte; parts cut out at their own rate, sample by sample.
    for i, kind in enumerate(("wav", "flac", "ogg")):
        source = manifest.parent / "audio" / f"{i}.{kind}"
        assert (to / "data" / "train" / train[i]["file_name"]).read_bytes() == source.read_bytes()
    cut, rate = soundfile.read(to / "data" / "train" / train[3]["file_name"], dtype="int16")
    long, _ = soundfile.read(manifest.parent / "long.wav", dtype="int16")
    assert rate == 22050 and np.array_equal(cut, long[22050:44100])
    assert [r["duration"] for r in test] == [1.0, 0.5]
    files = [p for p in to.rglob("*") if p.is_file()]
    assert len(files) == 6 + 2 + 1 and all(p.resolve().is_relative_to(to.resolve()) for p in files)
    text = "".join(p.read_text() for p in files if p.suffix in (".jsonl", ".md"))
    assert "/home/me" not in text and str(tmp_path) not in text and "audio_path" not in text
    assert list(test[0]) == list(train[0]) and test[0]["language"] == ""  # as `datasets` wants it
    assert "words" not in train[0] and "Left out, because not every split has it: words." in remarks
    assert any("speakers' names" in r for r in remarks) and not any("licence" in r for r in remarks)


def test_the_card(manifest, tmp_path):
    from huggingface_hub import DatasetCard

    to = tmp_path / "made"
    build([str(manifest)], to, "anna/voices", "cc-by-4.0")
    card = DatasetCard.load(to / "README.md")
    assert card.data.license == "cc-by-4.0" and card.data.language == ["de", "en"]
    assert card.data.size_categories == ["n<1K"] and card.data.task_categories == ["automatic-speech-recognition"]
    assert card.data.configs[0]["data_files"] == [
        {"split": "train", "path": "data/train/**"},
        {"split": "test", "path": "data/test/**"},
    ]
    assert "| train | 4 | 2.5 s | 1.0 s | 1 | de, en |" in card.text
    assert "6 recordings of speech, 4 s, by 2 speakers, all with a transcript." in card.text
    assert "16,000 Hz (4), 22,050 Hz (2)" in card.text
    assert "1 speaker is in more than one split" in card.text
    assert 'load_dataset("anna/voices", split="train")' in card.text
    assert "<script>" not in card.text


def test_without_a_licence_the_card_says_so(manifest, tmp_path):
    remarks = build([str(manifest)], tmp_path / "made")
    assert any("--license" in r for r in remarks)
    assert "all rights are reserved" in (tmp_path / "made" / "README.md").read_text()


def test_the_same_data_make_the_same_bytes(manifest, tmp_path):
    contents = []
    for name in ("a", "b"):
        build([str(manifest)], tmp_path / name, "anna/voices", flac=True)
        contents.append(
            {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}
        )
    assert contents[0] == contents[1] and sum(p.suffix == ".flac" for p in contents[0]) == 6


def test_paths_from_another_folder(manifest, tmp_path, monkeypatch):
    """As a script wrote them that was started there: the message has what works."""
    (tmp_path / "lists").mkdir()
    moved = manifest.rename(tmp_path / "lists" / "voices.jsonl")
    monkeypatch.chdir(tmp_path / "voices")
    with pytest.raises(DataError, match=rf"\(on the command line: {moved},audio_folder=\.\)"):
        build([str(moved)], tmp_path / "made")
    build([f"held-out={moved},audio_folder=."], tmp_path / "made")
    assert len(rows_of(tmp_path / "made", "held_out")) == 6


def test_named_splits(manifest, tmp_path):
    to = tmp_path / "made"
    build([f"train={manifest}", f"held-out={manifest}"], to)
    assert len(rows_of(to, "train")) == len(rows_of(to, "held_out")) == 6


def test_it_can_be_trained_on(manifest, tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from stentor.data.cut import language_of, speaker_of, text_of
    from stentor.data.load_audio import load_audio
    from stentor.sources.base import Source

    to = tmp_path / "made"
    build([str(manifest)], to, "anna/voices")
    source = Source.model_validate({"type": "hub", "name": str(to), "split": "train", "cache": str(tmp_path / "c")})
    cuts = list(source.cuts())
    assert [text_of(c) for c in cuts] == ["text 0", "text 1", "text 2", EVIL]
    assert [speaker_of(c) for c in cuts][:3] == ["Änn"] * 3 and language_of(cuts[3]) == "en"
    assert np.abs(load_audio(cuts[0], RATE) - tone(0)).max() < 1e-4


def test_what_cannot_be_heard_is_listed_and_nothing_is_sent(manifest, tmp_path, hub, attempt):
    (manifest.parent / "audio" / "1.flac").write_bytes(b"no audio")
    (manifest.parent / "audio" / "2.ogg").unlink()
    with pytest.raises(DataError, match=r"(?s)2 records cannot.*manifest.jsonl:2: .*manifest.jsonl:3: .*not exist"):
        build([str(manifest)], tmp_path / "made")
    code, output = attempt("publish", "dataset", manifest, "--to", f"{hub.user}/voices")
    assert code == 3 and "2 records cannot be published" in output
    assert not hub.repos


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "x"}, "no `audio_path`"),
        ({"audio_path": "a.wav", "split": "../up"}, "a split is named by"),
        ({"audio_path": "a.wav", "start": "now"}, "`start` must be a number of seconds"),
        ({"audio_path": "a.wav", "start": 9.0}, "no audio from 9 s on"),
    ],
)
def test_wrong_records(tmp_path, record, message):
    write(tmp_path / "a.wav", tone(0), RATE)
    (tmp_path / "m.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=message):
        build([str(tmp_path / "m.jsonl")], tmp_path / "made")


def test_the_command_survives_a_broken_connection(manifest, hub, attempt, monkeypatch, tmp_path):
    monkeypatch.setattr(publishing, "WAITS", [])
    command = ("publish", "dataset", manifest, "--to", f"{hub.user}/voices", "--license", "cc0-1.0")
    hub.fail(503, "/commit/", times=None)
    code, output = attempt(*command)
    assert code == 1 and "Run the same command again" in output
    hub.faults.clear()
    stored = len(hub.asked("^PUT"))
    code, output = attempt(*command)
    assert code == 0 and f"{hub.endpoint}/datasets/{hub.user}/voices" in output
    assert stored and len(hub.asked("^PUT")) == stored  # the audio was there already
    repo = hub.repos[f"datasets/{hub.user}/voices"]
    assert repo.private and len([f for f in repo.files if f.endswith((".flac", ".wav", ".ogg"))]) == 6
    assert hub.token not in output


def test_a_card_of_ones_own(manifest, tmp_path, here):
    card = tmp_path / "card.md"
    card.write_text("---\nlicense: cc0-1.0\n---\n\n# Mine\n")
    output = here("publish", "dataset", manifest, "--dry-run", tmp_path / "dry", "--card", card)
    assert (tmp_path / "dry" / "README.md").read_text() == card.read_text()
    assert "Nothing was sent" in output
