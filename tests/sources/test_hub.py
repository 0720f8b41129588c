import io
import json
import pickle
import tarfile

import numpy as np
import pytest
import soundfile

from stentor.data.cut import UnusableRecord, field_of, language_of, record_from_cut, speaker_of, text_of
from stentor.data.load_audio import load_audio, load_record
from stentor.errors import ConfigError, DataError
from stentor.sources.base import Source

datasets = pytest.importorskip("datasets")

RATE = 16000


def tone(number):
    """Half a second of a sound that differs for each number; exact in 16 bits."""
    time = np.arange(RATE // 2)
    return np.round(np.sin(time * (number + 1) / 40) * 8192) / 32768


def encoded(number, kind="flac"):
    file = io.BytesIO()
    soundfile.write(file, tone(number), RATE, format=kind, subtype=None if kind == "mp3" else "PCM_16")
    return file.getvalue()


def rows(count=6):
    return [
        {
            "audio": {"bytes": encoded(i), "path": f"{i}.flac"},
            "sentence": f"text {i}",
            "client_id": f"anna{i % 3}",
            "gender": i % 2,
            "votes": i,
        }
        for i in range(count)
    ]


def write_parquet(folder, data, shards=1):
    """Files of these rows; returns the folder."""
    table = datasets.Dataset.from_list(data).cast_column("audio", datasets.Audio())
    if "gender" in table.column_names:
        table = table.cast_column("gender", datasets.ClassLabel(names=["female", "male"]))
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(shards):
        table.shard(shards, i, contiguous=True).to_parquet(folder / f"train-{i:05d}-of-{shards:05d}.parquet")
    return folder


@pytest.fixture
def parquet(tmp_path):
    return write_parquet(tmp_path / "set" / "data", rows(), shards=2).parent


def source(tmp_path, **options):
    if "name" in options:
        options["name"] = str(options["name"])
    return Source.model_validate({"type": "hub", "cache": str(tmp_path / "cache"), **options})


@pytest.fixture(autouse=True)
def no_decoder(monkeypatch):
    """Audio is never decoded by `datasets`."""

    def refuse(*_, **__):
        raise AssertionError("datasets decoded audio")

    monkeypatch.setattr(datasets.Audio, "decode_example", refuse)


@pytest.mark.parametrize("stream", [False, True])
def test_parquet_with_embedded_audio(parquet, tmp_path, stream):
    hub = source(tmp_path, name=parquet, stream=stream)
    assert hub.streaming == stream
    cuts = list(hub.cuts())
    assert [text_of(c) for c in cuts] == [f"text {i}" for i in range(6)]
    assert [speaker_of(c) for c in cuts] == ["anna0", "anna1", "anna2"] * 2
    assert len({c.id for c in cuts}) == 6
    assert [c.duration for c in cuts] == [0.5] * 6
    assert [field_of(c, "votes") for c in cuts] == list(range(6))
    for i in (5, 0, 3):  # in any order
        assert load_audio(cuts[i]) == pytest.approx(tone(i), abs=1e-6)
    assert [c.id for c in hub.cuts()] == [c.id for c in cuts]
    assert load_audio(pickle.loads(pickle.dumps(cuts[4]))) == pytest.approx(tone(4), abs=1e-6)  # in spawned workers
    if not stream:  # reports find the audio again
        record = json.loads(json.dumps(record_from_cut(cuts[4])))
        assert load_record(record) == pytest.approx(tone(4), abs=1e-6)


def test_class_labels_are_names_and_select(parquet, tmp_path):
    cuts = list(source(tmp_path, name=parquet, where={"gender": "male"}).cuts())
    assert [text_of(c) for c in cuts] == ["text 1", "text 3", "text 5"]


@pytest.mark.parametrize("stream", [False, True])
def test_audio_folder(tmp_path, stream):
    folder = tmp_path / "set" / "train"
    folder.mkdir(parents=True)
    with (folder / "metadata.jsonl").open("w") as lines:
        for i in range(3):
            (folder / f"{i}.flac").write_bytes(encoded(i))
            lines.write(json.dumps({"file_name": f"{i}.flac", "transcription": f"text {i}"}) + "\n")
    cuts = list(source(tmp_path, name=tmp_path / "set", stream=stream, language="sv").cuts())
    assert sorted(text_of(c) for c in cuts) == ["text 0", "text 1", "text 2"]
    assert {language_of(c) for c in cuts} == {"sv"}
    for cut in cuts:
        assert load_audio(cut) == pytest.approx(tone(int(text_of(cut)[-1])), abs=1e-6)


@pytest.mark.parametrize("name", ["audiofolder", "parquet", "csv"])
def test_a_folder_with_the_name_of_a_format_is_that_folder(tmp_path, monkeypatch, name):
    """`datasets` would take the name for a format and read what lies around."""
    write_parquet(tmp_path / name, rows(2))
    write_parquet(tmp_path / "neighbour", rows(5))
    write_parquet(tmp_path, rows(4))
    monkeypatch.chdir(tmp_path)
    section = {"type": "hub", "cache": str(tmp_path / "cache")}
    found = Source.model_validate(section | {"name": name})
    assert len(list(found.cuts())) == len(list(found.texts())) == 2
    with pytest.raises(ConfigError, match="no folder `text` here, and `text` is a format"):
        list(Source.model_validate(section | {"name": "text"}).cuts())


def write_webdataset(folder, name="train-00000.tar", kind="flac"):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / name, "w") as tar:
        for i in range(4):
            about = {"id": f"W{i}", "text": f"text {i}", "speaker": f"S{i % 2}", "language": "de", "duration": 0.5}
            about["dnsmos"] = 2.9 + 0.1 * i
            for ending, data in ((kind, encoded(i, kind)), ("json", json.dumps(about).encode())):
                member = tarfile.TarInfo(f"W{i}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("stream", [False, True])
def test_webdataset(tmp_path, stream):
    write_webdataset(tmp_path / "set")
    cuts = list(source(tmp_path, name=tmp_path / "set", stream=stream, quality={"json.dnsmos": [2.95, None]}).cuts())
    assert [isinstance(c, UnusableRecord) for c in cuts] == [True, False, False, False]
    assert cuts[0].reason == "quality" and "json.dnsmos" in cuts[0].message
    assert [(text_of(c), speaker_of(c), language_of(c)) for c in cuts[1:]] == [
        ("text 1", "S1", "de"),
        ("text 2", "S0", "de"),
        ("text 3", "S1", "de"),
    ]
    assert load_audio(cuts[2]) == pytest.approx(tone(2), abs=1e-6)


def test_saved_to_disk(tmp_path):
    data = datasets.Dataset.from_list(rows(3)).cast_column("audio", datasets.Audio())
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "saved"))
    cuts = list(source(tmp_path, name=tmp_path / "saved").cuts())
    assert [text_of(c) for c in cuts] == ["text 0", "text 1", "text 2"]
    assert load_audio(cuts[2]) == pytest.approx(tone(2), abs=1e-6)
    with pytest.raises(DataError, match="no split 'test'; it has: train"):
        list(source(tmp_path, name=tmp_path / "saved", split="test").cuts())


def test_transcripts_alone_with_paths(tmp_path):
    audio, lists = tmp_path / "audio", tmp_path / "set"
    (audio / "a").mkdir(parents=True)
    lists.mkdir()
    (audio / "a" / "0.wav").write_bytes(encoded(0, "wav"))
    lines = [{"audio_filepath": f"a/{i}.wav", "text": f"text {i}", "duration": 0.5} for i in range(2)]
    (lists / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    good, missing = source(tmp_path, name=lists, audio_folder=str(audio)).cuts()
    assert load_audio(good) == pytest.approx(tone(0), abs=1e-6)
    assert isinstance(missing, UnusableRecord) and missing.reason == "missing" and "1.wav" in missing.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"text": "txt"}}, r"no column 'txt'.*it has: audio, sentence, client_id, gender, votes"),
        ({"columns": {"audio": "sound"}}, r"no column 'sound'.*it has: audio, sentence"),
        ({"quality": {"mos": [3, None]}}, r"no column 'mos' \(named in `quality`\)"),
        ({"split": "validation"}, r"no split 'validation'; it has: train\. To hold out .*`part: validation`"),
        ({"split": "validation", "stream": True}, r"no split 'validation'; it has: train\. To hold out"),
        ({"name": "nowhere/at/all"}, "does not exist"),
    ],
)
def test_what_is_not_there_is_said_with_what_there_is(parquet, tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        list(source(tmp_path, **{"name": parquet, **options}).cuts())


def test_which_column_is_the_text(tmp_path):
    data = [{"audio": r["audio"], "says": r["sentence"]} for r in rows(2)]
    write_parquet(tmp_path / "set", data)
    with pytest.raises(DataError, match=r"which column is the transcript\? It has: audio, says"):
        list(source(tmp_path, name=tmp_path / "set").cuts())
    cuts = list(source(tmp_path, name=tmp_path / "set", columns={"text": "says"}).cuts())
    assert [text_of(c) for c in cuts] == ["text 0", "text 1"]


def test_durations_in_another_unit_are_refused_and_milliseconds_understood(tmp_path):
    for column, value in (("duration", 500), ("duration_ms", 500), ("frames", 8000)):
        data = [{**{k: r[k] for k in ("audio", "sentence")}, column: value} for r in rows(2)]
        write_parquet(tmp_path / column, data)
    with pytest.raises(DataError, match=r"column 'duration' says 500 where the recording has 0.50 s"):
        list(source(tmp_path, name=tmp_path / "duration").cuts())
    for name in ("duration_ms", "frames"):
        assert [c.duration for c in source(tmp_path, name=tmp_path / name).cuts()] == [0.5, 0.5]


def test_broken_audio_is_counted_not_fatal(tmp_path):
    data = rows(4)
    data[1]["audio"]["bytes"] = b"not audio at all"
    data[2]["audio"]["bytes"] = b""
    data[3]["audio"] = None
    write_parquet(tmp_path / "set", data)
    good, *bad = source(tmp_path, name=tmp_path / "set").cuts()
    assert text_of(good) == "text 0"
    assert [b.reason for b in bad] == ["unreadable", "empty", "empty"]
    assert all("row" in b.message and "/proc" not in b.message for b in bad)


def test_validation_part_has_its_own_speakers(tmp_path):
    data = [{**rows(1)[0], "client_id": f"p{i % 20}", "sentence": f"text {i}"} for i in range(60)]
    write_parquet(tmp_path / "set", data)

    def speakers(part, stream=False, **options):
        options = {"held_out": 0.3, "seed": 1, **options}
        return [
            speaker_of(c) for c in source(tmp_path, name=tmp_path / "set", part=part, stream=stream, **options).cuts()
        ]

    for stream in (False, True):
        train, held = speakers("train", stream), speakers("validation", stream)
        assert len(train) + len(held) == 60 and not set(train) & set(held) and held
        assert speakers("validation", stream) == held
        assert set(speakers("validation", stream, seed=2)) != set(held)
    assert len(set(speakers("validation"))) == 6  # 0.3 of 20 speakers with three records each
    assert len(set(speakers("validation", held_out=1e-9))) == 1
    with pytest.raises(DataError, match=r"no speaker is in the .*; `held_out` above 0\.\d+ takes one"):
        speakers("validation", stream=True, held_out=1e-9)


def test_validation_part_of_one_speaker_takes_records(tmp_path):
    write_parquet(tmp_path / "set", [{**r, "client_id": "me"} for r in rows(10)])
    train, held = (
        [text_of(c) for c in source(tmp_path, name=tmp_path / "set", part=part, held_out=0.2).cuts()]
        for part in ("train", "validation")
    )
    assert len(held) == 2 and sorted(train + held) == [f"text {i}" for i in range(10)]


def test_preset_fills_in_from_a_local_copy(tmp_path):
    write_webdataset(tmp_path / "set" / "Emilia" / "DE", "DE-B000000.tar", "mp3")
    hub = source(tmp_path, preset="emilia", language="de", name=tmp_path / "set")
    assert hub.streaming
    poor, *cuts = hub.cuts()
    assert isinstance(poor, UnusableRecord) and poor.reason == "quality"
    assert [(c.id, text_of(c), speaker_of(c), language_of(c)) for c in cuts] == [
        (f"W{i}", f"text {i}", f"S{i % 2}", "de") for i in (1, 2, 3)
    ]
    assert len(load_audio(cuts[0])) == pytest.approx(8000, abs=1)


@pytest.mark.parametrize("language", ["fr", "fr_fr", "French", "fra"])
def test_a_preset_gives_language_codes(tmp_path, language):
    data = [
        {
            "id": 7,
            "path": f"{i}.wav",
            "audio": {"bytes": encoded(i), "path": None},
            "raw_transcription": f"Text {i}.",
            "transcription": f"text {i}",
            "language": "French",
        }
        for i in range(2)
    ]
    write_parquet(tmp_path / "set" / "fr_fr" / "train", data)
    cuts = list(source(tmp_path, preset="fleurs", language=language, name=tmp_path / "set").cuts())
    assert [(c.id, text_of(c), language_of(c)) for c in cuts] == [
        ("0.wav", "Text 0.", "fr"),
        ("1.wav", "Text 1.", "fr"),
    ]


def test_granary_by_language_with_quality_filters(tmp_path):
    folder = tmp_path / "set"
    texts = ["ein guter satz", "ja", "ja ja ja ja ja", "x" * 40]
    data = [
        {
            "utt_id": f"u{i}",
            "audio": {"bytes": encoded(0), "path": None},
            "duration": 0.5,
            "lang": "de",
            "text": text,
            "original_audio_id": f"video{i}",
        }
        for i, text in enumerate(texts)
    ]
    write_parquet(folder / "de", data)
    card = "configs:\n- config_name: German\n  data_files:\n  - split: asr_only\n    path: de/*.parquet\n"
    card += "- config_name: French\n  data_files:\n  - split: asr_only\n    path: fr/*.parquet\n"
    (folder / "README.md").write_text(f"---\n{card}---\n")
    options = {"preset": "granary", "language": "de", "name": folder, "quality": {"repeats": [None, 3]}}
    records = list(source(tmp_path, **options).cuts())
    assert [c.id for c in records if not isinstance(c, UnusableRecord)] == ["u0", "u1"]
    assert [c.id for c in records if isinstance(c, UnusableRecord)] == ["u2", "u3"]
    assert "characters_per_second" in records[3].message and "repeats" in records[2].message
    assert language_of(records[0]) == "de" and speaker_of(records[0]) == "video0"
    with pytest.raises(DataError, match=r"has no config 'Danish': set `config` to one of .*French"):
        list(source(tmp_path, **{**options, "language": "da"}).cuts())


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("known are: granary, common_voice", {"preset": "granny"}),
        ("needs a language: set `language` to one of bg, hr", {"preset": "granary"}),
        ("has no language 'ja': set `language` to one of bg, hr", {"preset": "granary", "language": "ja"}),
        ("has no subset 'x'; it has: clean, other", {"preset": "librispeech", "subset": "x"}),
        ("it has: none, so leave", {"preset": "fleurs", "subset": "x", "language": "fr"}),
        (r"Granary \(fr_ytc\) holds .*`audio_folder`", {"preset": "granary", "subset": "ytc", "language": "fr"}),
        (r"Granary \(mt_ytc\) holds only transcripts", {"preset": "granary", "language": "mt"}),
        ("`name`.*or `preset`", {}),
        ("slices are not supported", {"name": "a/b", "split": "train[:1%]"}),
    ],
)
def test_presets_say_what_they_need(tmp_path, message, options):
    with pytest.raises(ConfigError, match=message):
        list(source(tmp_path, **options).cuts())


@pytest.mark.parametrize(
    "options, name, where",
    [
        ({"preset": "fleurs", "language": "fr"}, "google/fleurs", ("refs/convert/parquet", "fr_fr/train/*.parquet")),
        ({"preset": "mls", "language": "de"}, "facebook/multilingual_librispeech", (None, None)),
        ({"preset": "mls", "language": "en"}, "parler-tts/mls_eng", (None, None)),
        ({"preset": "librispeech", "subset": "other"}, "openslr/librispeech_asr", (None, None)),
        ({"preset": "granary", "language": "de"}, "espnet/yodas-granary", (None, None)),
        ({"preset": "granary", "language": "mt"}, "nvidia/Granary", (None, None)),
        ({"preset": "common_voice", "language": "sv-SE"}, "fixie-ai/common_voice_17_0", (None, None)),
    ],
)
def test_where_presets_lead(tmp_path, monkeypatch, options, name, where):
    asked = {}

    def load_dataset(path, config, **more):
        asked.update(path=path, config=config, **more)
        raise datasets.exceptions.DatasetNotFoundError("gone")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match="hf auth login"):
        list(source(tmp_path, audio_folder=str(tmp_path), **options).cuts())
    assert asked["path"] == name and asked["revision"] == where[0]
    assert (asked["data_files"] or {}).get(asked["split"]) == where[1]
    spelled = {"de": "German", "mt": "mt_ytc"} if options["preset"] == "granary" else {"de": "german", "sv-SE": "sv-SE"}
    expected = "other" if options["preset"] == "librispeech" else spelled.get(options.get("language"))
    assert asked["config"] == expected


@pytest.mark.parametrize(
    "error, sentence",
    [
        (
            datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' is a gated dataset on the Hub. hf_abcdefghij1234"),
            r"is gated: accept its licence on https://huggingface.co/datasets/a/b, then log in with `hf auth login`",
        ),
        (
            datasets.exceptions.DatasetNotFoundError("Dataset 'a/b' doesn't exist on the Hub"),
            r"There is no data set a/b on the Hub, or it is private.*`hf auth login`",
        ),
        (ConnectionError("Couldn't reach https://x?token=hf_abcdefghij1234"), r"could not be reached.*HF_HUB_OFFLINE"),
        (RuntimeError("Dataset scripts are no longer supported, but found b.py"), r"revision: refs/convert/parquet"),
        (OSError("odd thing with Bearer s3cretvalue and mytoken-123"), r"cannot be read: OSError: odd thing"),
    ],
)
def test_failures_say_what_to_do_and_no_token(tmp_path, monkeypatch, error, sentence):
    def load_dataset(*_, **__):
        raise error

    monkeypatch.setenv("HF_TOKEN", "mytoken-123")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=sentence) as caught:
        list(source(tmp_path, name="a/b").cuts())
    message = str(caught.value)
    assert not any(secret in message for secret in ("abcdefghij", "s3cret", "mytoken"))
    assert "\n" not in message and caught.value.__cause__ is None and caught.value.__suppress_context__


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'stentor\[hub\]'"):
        list(source(tmp_path, name="a/b").cuts())


@pytest.mark.parametrize("stream", [False, True])
def test_columns_of_speaker_segments(tmp_path, stream):
    """The data sets of diarizers: lists of starts, ends and speakers; an empty one is silence."""
    lists = [([0.0, 0.1], [0.2, 0.4], ["A", "B"]), ([], [], []), ([0.1], [3.0], ["A"])]
    keys = ("timestamps_start", "timestamps_end", "speakers")
    data = [{"audio": row["audio"], **dict(zip(keys, values))} for row, values in zip(rows(), lists)]
    folder = write_parquet(tmp_path / "set" / "data", data).parent
    two, silent, beyond = source(tmp_path, name=folder, stream=stream).cuts()
    segments = [{"speaker": "A", "start": 0.0, "end": 0.2}, {"speaker": "B", "start": 0.1, "end": 0.4}]
    assert record_from_cut(two)["segments"] == segments and "speakers" not in record_from_cut(two)
    assert field_of(silent, "segments") == [] and text_of(silent) is None
    assert beyond.reason == "truncated" and "row 2: a segment of A goes from 0.1 to 3 s" in beyond.message
    names = {"starts": "timestamps_start", "ends": "timestamps_end", "speakers": "speakers"}
    assert len(list(source(tmp_path, name=folder, stream=stream, columns=names).cuts())) == 3
    data[0]["speakers"] = ["A"]
    folder = write_parquet(tmp_path / "bad" / "data", data).parent
    with pytest.raises(DataError, match=r"'timestamps_end', 'speakers' must be lists of one length"):
        list(source(tmp_path, name=folder, stream=stream).cuts())
