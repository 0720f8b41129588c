"""Evaluation lists of speech synthesis, each format as it is published."""

import hashlib
import json

import numpy as np
import pytest

from stentor.audio.io import write
from stentor.config.load import parse_source
from stentor.data.cut import field_of, language_of, speaker_of, text_of
from stentor.errors import DataError
from stentor.sources.speech_list import SCORED_TEXT


@pytest.fixture
def folder(tmp_path):
    for name in ("zh/prompt-wavs/p1.wav", "zh/wavs/u2.wav", "speaker/english/english_male/em.wav", "a.wav"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, np.full(16000, 0.1, np.float32), 16000)
    return tmp_path


def facts(cut):
    return text_of(cut), field_of(cut, "reference_text"), language_of(cut), cut.duration


def test_seed_tts_with_and_without_the_recording(folder):
    (folder / "zh" / "meta.lst").write_text(
        "u1|提示|prompt-wavs/p1.wav|你好\nu2|提示|prompt-wavs/p1.wav|世界|wavs/u2.wav\n", encoding="utf-8"
    )
    source = parse_source(str(folder / "zh" / "meta.lst"))
    first, second = source.cuts()
    assert (source.type, first.id, second.id) == ("speech_list", "u1", "u2")
    assert facts(first) == ("你好", "提示", "zh", 0.0) and facts(second) == ("世界", "提示", "zh", 1.0)
    assert field_of(first, "reference") == str(folder / "zh" / "prompt-wavs" / "p1.wav")
    assert field_of(second, "audio_path") == str(folder / "zh" / "wavs" / "u2.wav")
    assert source.facts() == {
        "name": "meta.lst",
        "format": "seed_tts",
        "sha256": hashlib.sha256((folder / "zh" / "meta.lst").read_bytes()).hexdigest(),
        "protocol": "seed_tts",
    }


def test_seed_tts_in_two_and_three_columns(folder):
    (folder / "meta.lst").write_text("u1.wav|good morning|a.wav\n")
    (cut,) = parse_source(str(folder / "meta.lst")).cuts()
    assert (cut.id, *facts(cut)) == ("u1", "good morning", None, None, 0.0)
    (folder / "meta.lst").write_text("u1|good morning\n")
    (cut,) = parse_source(f"{folder / 'meta.lst'},language=en").cuts()
    assert field_of(cut, "reference") is None and language_of(cut) == "en"


def test_librispeech_pc_by_utterance(folder):
    for chapter, seconds in (("121726", 2), ("123852", 3)):
        path = folder / "LibriSpeech" / "test-clean" / "908" / chapter / f"908-{chapter}-0001.flac"
        path.parent.mkdir(parents=True)
        write(path, np.full(seconds * 16000, 0.1, np.float32), 16000)
    line = "908-121726-0001\t2.0\tA prompt.\t908-123852-0001\t3.0\tA text.\n"
    (folder / "librispeech_pc_test_clean_cross_sentence.lst").write_text(line)
    root = folder / "LibriSpeech" / "test-clean"
    source = parse_source(f"{folder / 'librispeech_pc_test_clean_cross_sentence.lst'},audio_root={root}")
    (cut,) = source.cuts()
    assert (cut.id, *facts(cut)) == ("908-123852-0001", "A text.", "A prompt.", "en", 3.0)
    assert field_of(cut, "reference").endswith("908/121726/908-121726-0001.flac")
    assert source.facts()["protocol"] == "librispeech_pc"


def test_minimax_by_speaker(folder):
    (folder / "text").mkdir()
    (folder / "text" / "english.txt").write_text("english_male|One two.\nenglish_male|Three.\n")
    (folder / "speaker" / "prompt_text.txt").write_text("em.wav|What he says.\n")
    source = parse_source(str(folder / "text" / "english.txt"))
    first, second = source.cuts()
    assert (first.id, second.id) == ("english-0001", "english-0002")
    assert facts(first) == ("One two.", "What he says.", "en", 0.0) and speaker_of(first) == "english_male"
    assert source.facts()["protocol"] == "minimax"


def test_tabs(folder):
    (folder / "test.tsv").write_text("u1\ta prompt\ta.wav\ta text\n")
    (cut,) = parse_source(str(folder / "test.tsv")).cuts()
    assert facts(cut) == ("a text", "a prompt", None, 0.0)


def test_json_lines_of_omnivoice_and_ours(folder, monkeypatch):
    theirs = {"id": "u1", "text": "eins", "ref_audio": "a.wav", "ref_text": "zwei", "language_id": "de"}
    theirs["duration"] = 2.5
    ours = {"text": "drei", "reference": "a.wav", "reference_text": "vier", "language": "de", "instruct": "male"}
    lines = [json.dumps({**theirs, "language_name": "German", "speed": None}), json.dumps(ours)]
    path = folder / "lists" / "fleurs_multilingual_102.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(folder)  # OmniVoice's paths start from the working directory
    source = parse_source(str(path))
    first, second = source.cuts()
    assert (source.type, source.facts()["protocol"]) == ("speech_list", "fleurs")
    assert facts(first) == ("eins", "zwei", "de", 0.0) and facts(second) == ("drei", "vier", "de", 0.0)
    assert field_of(first, "speak_seconds") == 2.5 and field_of(first, "language_name") == "German"
    assert (second.id, field_of(second, "instruct")) == ("line00002", "male")
    assert field_of(second, "reference") == str(folder / "a.wav")


def test_json_lines_without_references(folder):
    """As OmniVoice's transcripts of LibriSpeech-PC, and as lists of described voices."""
    path = folder / "librispeech_pc_test_clean_transcript.jsonl"
    path.write_text('{"id": "u1", "text": "one", "ref_audio": null}\n{"id": "u2", "text": "two", "instruct": "male"}\n')
    source = parse_source(str(path))
    first, second = source.cuts()
    assert (source.type, source.facts()["protocol"]) == ("speech_list", "librispeech_pc")
    assert facts(first) == ("one", None, None, 0.0) and field_of(second, "instruct") == "male"


def test_other_files_are_what_they_were(folder):
    (folder / "data.lst").write_text("a/shard-000000.tar\ta/shard-000000.jsonl\t3\t4.5\n")
    (folder / "train.jsonl").write_text('{"audio_path": "a.wav", "text": "one", "reference": "an older text"}\n')
    assert parse_source(str(folder / "data.lst")).type == "shards"
    assert parse_source(str(folder / "nowhere.lst")).type == "shards"
    assert parse_source(str(folder / "train.jsonl")).type == "jsonl"
    named = '{"id": "u1", "text": "one", "audio": "a.wav"}'
    for line in ('{"text": "one"}', named, '{"id": "u1", "audio_path": "a.wav"}'):
        (folder / "train.jsonl").write_text(line + "\n")
        assert parse_source(str(folder / "train.jsonl")).type == "jsonl"
    assert parse_source(str(folder / "a.wav")).type == "manifest"


def test_every_line_that_cannot_be_used_is_named(folder):
    lines = ["u1|p|a.wav|one", "u2|p|b.wav|two", "u3|p|a.wav| ", "u1|p|a.wav|three", "u5|p|a.wav|x|y|z"]
    (folder / "meta.lst").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as error:
        list(parse_source(str(folder / "meta.lst")).cuts())
    lines = str(error.value).splitlines()
    assert "has 4 lines that cannot be used" in lines[0]
    assert [line.split(":")[1] for line in lines[1:]] == ["2", "3", "4", "5"]


def test_numbers_and_references_are_what_they_must_be(folder):
    wrong = [{"speed": "fast"}, {"speed": 0}, {"duration": True}, {"duration": -1}, {"voice": 3}]
    records = [{"id": f"u{i}", "text": "one", "reference": "a.wav", **keys} for i, keys in enumerate(wrong)]
    (folder / "test.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "meta.lst").write_text("u1|p||one\n")
    for name, message, count in (("test.jsonl", "must be a", 5), ("meta.lst", "the reference is empty", 1)):
        with pytest.raises(DataError) as error:
            list(parse_source(str(folder / name)).cuts())
        assert str(error.value).count(message) == count


def test_folders_of_ones_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    (folder / "english.txt").write_text("english_male|One two.\n")
    source = parse_source(f"type=speech_list,format=minimax,path={folder / 'english.txt'},audio_root=~/speaker")
    assert field_of(next(iter(source.cuts())), "reference") == str(folder / "speaker/english/english_male/em.wav")


def test_errors_are_counted_against_the_transcripts(folder):
    listed, heard = folder / "list.jsonl", folder / "transcripts.jsonl"
    listed.write_text('{"id": "u1", "text": "Mr. Brown"}\n{"id": "u2", "text": "No. 2"}\n')
    heard.write_text('{"id": "u2", "text": "number two"}\n\n{"id": "u1", "text": "mister brown"}\n')
    spec = f"type=speech_list,path={listed},transcripts={heard}"
    cuts = list(parse_source(spec).cuts())
    assert [(text_of(cut), field_of(cut, SCORED_TEXT)) for cut in cuts] == [
        ("Mr. Brown", "mister brown"),
        ("No. 2", "number two"),
    ]
    heard.write_text('{"id": "u1", "text": "mister brown"}\n')
    with pytest.raises(DataError, match=r"list\.jsonl:2: .*transcripts\.jsonl has no text of the id 'u2'"):
        list(parse_source(spec).cuts())
    listed.write_text('{"id": "u1", "text": "Mr. Brown", "scored_text": 3}\n')
    with pytest.raises(DataError, match=r"list\.jsonl:1: .*scored_text"):
        list(parse_source(f"type=speech_list,path={listed}").cuts())


def test_leading_folders_that_are_not_below_the_root_are_left_out(folder):
    (folder / "lists").mkdir()
    listed = folder / "lists" / "list.jsonl"
    listed.write_text('{"id": "u1", "text": "one", "ref_audio": "download/sets/zh/prompt-wavs/p1.wav"}\n')
    (cut,) = parse_source(f"type=speech_list,path={listed},audio_root={folder}").cuts()
    assert field_of(cut, "reference") == str(folder / "zh" / "prompt-wavs" / "p1.wav")
    listed.write_text('{"id": "u1", "text": "one", "ref_audio": "download/sets/gone.wav"}\n')
    with pytest.raises(DataError, match=r"list\.jsonl:1: the reference .*/download/sets/gone\.wav does not exist"):
        list(parse_source(f"type=speech_list,path={listed},audio_root={folder}").cuts())
