"""Folders and binary files given by their path alone: which source reads them, and with which texts."""

import numpy as np
import pytest

from stentor.audio.io import write
from stentor.cli import main
from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, language_of, speaker_of, text_of
from stentor.errors import DataError


def wav(path, seconds=0.5):
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, np.full(int(16000 * seconds), 0.1, np.float32), 16000)
    return path


def read(path, *keys):
    """Texts of the records of a path, messages of those that cannot be used, and notes."""
    source = parse_source(",".join([str(path), *keys]))
    cuts = list(source.cuts())
    return [c.message if isinstance(c, UnusableRecord) else text_of(c) for c in cuts], " ".join(source.notes())


@pytest.fixture
def kaldi(tmp_path):
    folder = tmp_path / "egs" / "data" / "train"
    folder.mkdir(parents=True)
    for name in ("r1", "r2"):
        wav(tmp_path / "egs" / "audio" / f"{name}.wav", 2)
    (folder / "wav.scp").write_text("r1 audio/r1.wav\nr2\taudio/r2.wav\n")
    (folder / "segments").write_text("u1 r1 0 1\nu2 r1 1.0 2\nu3 r2 0.5 -1\n")
    (folder / "text").write_text("u1 one two\nu2 drei für\nu3 four\n", "utf-8")
    (folder / "utt2spk").write_text("u1 a\nu2 b\nu3 a\n")
    (folder / "utt2lang").write_text("u1 en\nu2 de\nu3 en\n")
    return folder


def test_kaldi_folder(kaldi):
    source = parse_source(str(kaldi))
    cuts = list(source.cuts())
    assert [(c.id, text_of(c), speaker_of(c), language_of(c), c.start, c.duration) for c in cuts] == [
        ("u1", "one two", "a", "en", 0, 1),
        ("u2", "drei für", "b", "de", 1, 1),
        ("u3", "four", "a", "en", 0.5, 1.5),
    ]
    layout, base = source.notes()
    assert "Kaldi data folder (wav.scp, segments, text, utt2spk, utt2lang)" in layout
    assert base == f"Paths in wav.scp start from {kaldi.parent.parent}."


def test_kaldi_folder_without_segments(kaldi):
    (kaldi / "segments").unlink()
    (kaldi / "text").write_text("r1 one\nr2 two\nr3 three\n")
    (kaldi / "reco2dur").write_text("r1 2.0\nr2 2.0\n")
    texts, _ = read(kaldi)
    assert texts[:2] == ["one", "two"] and "'r3' is not in wav.scp" in texts[2]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("wav.scp", "r1 sph2pipe -f wav a.sph |\n", "segments:1: wav.scp has a command for 'u1' (`sph2pipe"),
        ("segments", "u1 r1 0 x\n", "segments:1: `end` must be a number of seconds, got 'x'"),
        ("segments", "u1 r1 0\n", "segments:1: expected UTTERANCE RECORDING START END"),
    ],
)
def test_kaldi_folder_with_mistakes(kaldi, file, content, message):
    (kaldi / file).write_text(content)
    with pytest.raises(DataError) as error:
        read(kaldi)
    assert message in str(error.value)


def test_kaldi_rows_that_cannot_be_used_are_counted(kaldi):
    (kaldi / "segments").write_text("u1 r1 0 1\nu2 r9 0 1\nu3 r2 1 0.5\n")
    texts, _ = read(kaldi)
    assert texts[0] == "one two" and "'r9' is not in wav.scp" in texts[1] and "before its start" in texts[2]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "transcripts.tsv"])
def test_table_beside_audio(tmp_path, name):
    rows = {
        "metadata.csv": "file_name,transcription\na.wav,one\nb.wav,two\n",
        "metadata.jsonl": '{"file_name": "a.wav", "text": "one"}\n{"file_name": "b.wav", "text": "two"}\n',
        "transcripts.tsv": "path\tsentence\na.wav\tone\nb.wav\ttwo\n",
    }
    for stem in "ab":
        wav(tmp_path / f"{stem}.wav")
    (tmp_path / name).write_text(rows[name])
    (tmp_path / "README.json").write_text('{"licence": "none"}')
    texts, notes = read(tmp_path)
    assert texts == ["one", "two"] and f"{name} was read as" in notes
    assert read(f"type=audio_folder,path={tmp_path}")[1].startswith(f"The texts in {name} are not read")


def test_texts_beside_recordings_count_before_a_table(tmp_path):
    wav(tmp_path / "a.wav")
    (tmp_path / "a.txt").write_text("of the pair")
    (tmp_path / "metadata.csv").write_text("file_name,text\na.wav,of the table\n")
    assert read(tmp_path)[0] == ["of the pair"]


def test_folders_of_several_data_sets_list_them(tmp_path):
    for split in ("test", "train"):
        wav(tmp_path / split / "a.wav")
        (tmp_path / split / "metadata.csv").write_text("file_name,text\na.wav,one\n")
    with pytest.raises(DataError, match=f"give one of {tmp_path}/test, {tmp_path}/train"):
        parse_source(str(tmp_path))
    assert read(tmp_path / "test")[0] == ["one"]
    (tmp_path / "test" / "metadata.csv").rename(tmp_path / "test" / "dev.csv")
    (tmp_path / "test" / "train.csv").write_text("file_name,text\na.wav,one\n")
    with pytest.raises(DataError, match=r"several tables of recordings: give one of dev.csv, train.csv"):
        read(tmp_path / "test")


def test_unknown_folder_says_what_it_holds_and_what_is_known(tmp_path, capsys):
    (tmp_path / "notes.docx").write_text("")
    assert main(["prepare", "check", str(tmp_path), "--to", str(tmp_path / "report")]) == 3
    message = capsys.readouterr().err
    assert "It holds: notes.docx" in message and "Kaldi data folders (wav.scp)" in message


def test_recordings_are_joined_with_supervisions(tmp_path):
    from lhotse import Recording, RecordingSet, SupervisionSegment, SupervisionSet

    recordings = [Recording.from_file(wav(tmp_path / f"{name}.wav", 2)) for name in ("r1", "r2", "r3")]
    spans = [("s1", "r1", 0, "one"), ("s2", "r1", 1, "two"), ("s3", "r2", 0, "three"), ("s4", "r9", 0, "lost")]
    segments = [SupervisionSegment(name, of, start, 1, text=text) for name, of, start, text in spans]
    RecordingSet.from_recordings(recordings).to_file(tmp_path / "x_recordings.jsonl.gz")
    with pytest.raises(DataError, match=r"holds recordings, and its supervisions .* expected x_supervisions.jsonl.gz"):
        read(tmp_path / "x_recordings.jsonl.gz")
    SupervisionSet.from_segments(segments).to_file(tmp_path / "x_supervisions.jsonl.gz")
    for path in (tmp_path, tmp_path / "x_recordings.jsonl.gz", tmp_path / "x_supervisions.jsonl.gz"):
        texts, notes = read(path)
        assert texts[:2] == ["one two", "three"] and "r3: no annotation" in texts[2] and "'r9'" in texts[3]
        assert notes.startswith("x_recordings.jsonl.gz was joined with x_supervisions.jsonl.gz")
    assert read(tmp_path, "utterances=true")[0][:3] == ["one", "two", "three"]


def test_hugging_face_folders_and_files(tmp_path):
    datasets = pytest.importorskip("datasets")
    audio = {"bytes": wav(tmp_path / "a.wav").read_bytes(), "path": "a.wav"}
    data = datasets.Dataset.from_list([{"audio": audio, "text": f"text {i}"} for i in range(2)])
    data.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"dev": data, "test": data}).save_to_disk(tmp_path / "several")
    datasets.DatasetDict({"dev": data}).save_to_disk(tmp_path / "single")
    data.to_parquet(tmp_path / "data.parquet")
    (tmp_path / "parquet").mkdir()
    data.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    for name, keys, split in (
        ("saved", [], "train"),
        ("single", [], "dev"),
        ("several", ["split=test"], "test"),
        ("data.parquet", [], "train"),
        ("parquet", [], "train"),
    ):
        texts, notes = read(tmp_path / name, *keys)
        assert texts == ["text 0", "text 1"]
        assert notes == f"{name} was read as: Hugging Face data set, split {split}, audio in the column 'audio'."
    with pytest.raises(DataError, match="has the splits dev, test: set `split` to one"):
        read(tmp_path / "several")


def test_parquet_table_beside_audio(tmp_path):
    datasets = pytest.importorskip("datasets")
    for stem in "ab":
        wav(tmp_path / f"{stem}.wav")
    table = {"file_name": ["a.wav", "b.wav"], "sentence": ["one", "two"]}
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "metadata.parquet")
    assert read(tmp_path)[0] == ["one", "two"]
    assert read(tmp_path / "metadata.parquet")[0] == ["one", "two"]


def test_path_without_a_type_in_a_run_file(kaldi, tmp_path):
    from stentor.config.load import load

    text = f"task: transcribe\nmodel: {{type: ctc, from: a/b}}\ndata: {{train: [{{path: {kaldi}, language: en}}]}}\n"
    (tmp_path / "run.yaml").write_text(text)
    (source,) = load(tmp_path / "run.yaml", ["data.train.0.limit=1"]).config.data.train
    assert source.type == "jsonl" and [text_of(cut) for cut in source.cuts()] == ["one two"]
