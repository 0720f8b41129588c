"""The source `audio_folder`: recordings by their paths, with the texts that lie beside them."""

import numpy as np
import pytest

from stentor.audio.io import write
from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, text_of


@pytest.fixture
def folder(tmp_path):
    for name in ("a.wav", "s1/b.x.flac", "s1/c.wav", "s2/d.wav"):
        write(tmp_path / name, np.full(1600, 0.1, np.float32), 16000)
    (tmp_path / "a.lab").write_text("one\n two ", "utf-8-sig")
    (tmp_path / "a.txt").write_text("another")
    (tmp_path / "s1" / "b.x.txt").write_text("drei vier für\n")
    (tmp_path / "s1" / "b.txt").write_text("of no recording")
    (tmp_path / "s2" / "d.txt").write_bytes(b"caf\xe9")
    return tmp_path


def test_texts_lie_beside_recordings(folder):
    *cuts, unusable = parse_source(str(folder)).cuts()
    assert [(cut.id, text_of(cut)) for cut in cuts] == [
        ("a.wav", "one two"),
        ("s1/b.x.flac", "drei vier für"),
        ("s1/c.wav", None),
    ]
    assert isinstance(unusable, UnusableRecord) and (unusable.id, unusable.reason) == ("s2/d.wav", "unreadable")
    assert unusable.message == f"{folder}/s2/d.txt:1: this is not UTF-8 text; save the file as UTF-8."


def test_case_does_not_matter_and_texts_without_recordings_are_reported(folder):
    (folder / "a.lab").rename(folder / "A.LAB")
    (folder / "s1" / "e.Lab").write_text("alone")
    (folder / "s1" / "c.txt").write_text("eins", "utf-16")
    lab, one, _, three, _ = parse_source(str(folder)).cuts()
    assert (lab.id, lab.reason) == ("s1/e.Lab", "no_audio") and "no recording of the same name" in lab.message
    assert (text_of(one), text_of(three)) == ("one two", "eins")


def test_other_texts_and_none(folder):
    def texts(suffixes):
        return [text_of(cut) for cut in parse_source(f"type=audio_folder,path={folder},{suffixes}").cuts()]

    assert texts("text_suffixes=[.txt],limit=2") == ["another", "drei vier für"]
    assert texts("text_suffixes=[]") == [None] * 4
