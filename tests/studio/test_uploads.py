"""Uploaded recordings: what is taken, what is not and why."""

import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from studio_audio import tone

from stentor.errors import AudioError, ConfigError, DataError
from stentor.studio import uploaded_audio
from stentor.studio.dataset import unpacking
from stentor.studio.dataset.long_recordings import split_into
from stentor.studio.dataset.uploads import add_uploads, planned_uploads
from stentor.studio.uploaded_audio import Upload, kind_of


@pytest.fixture
def upload(tmp_path):
    def make(name, data=None, seconds=1.0, rate=16000, channels=1, lie=None, **options):
        path = tmp_path / f"upload-{len(list(tmp_path.glob('upload-*')))}"
        if data is None:
            sound = np.stack([tone(seconds, rate)] * channels, 1)
            soundfile.write(path, sound, rate, format=name.rpartition(".")[2].upper(), **options)
        else:
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return Upload(path, lie or name)

    return make


def test_uploads_of_all_formats(voices, upload, tmp_path):
    audio = [
        upload(f"../{name}", rate=rate, channels=c)
        for name, rate, c in (("a.wav", 44100, 2), ("b.flac", 48000, 1), ("c.mp3", 16000, 1), ("d.ogg", 22050, 1))
    ]
    done = add_uploads(
        voices, audio, [upload("t.csv", "file,text,speaker\nd.ogg,vier,D\na.wav,eins,A\n")], speaker="all"
    )
    assert not done.refused
    taken = [("eins", "A"), ("", "all"), ("", "all"), ("vier", "D")]
    assert [(r["text"], r.get("speaker")) for r in done.records] == taken
    assert [soundfile.info(voices.audio(r)).samplerate for r in done.records] == [44100, 48000, 16000, 22050]
    assert [r["source"] for r in done.records] == ["a", "b", "c", "d"]


def write_av(path, sound, rate, form, codec):
    av = pytest.importorskip("av")
    with av.open(str(path), "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate, layout="stereo")
        kind = stream.codec_context.format.name
        size = stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(format=kind, layout="stereo", rate=rate, frame_size=size)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray([sound] * 2, np.float32), "fltp", "stereo")
        frame.sample_rate = rate
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))


def m4a(path, seconds, rate=44100):
    write_av(path, tone(seconds, rate), rate, "ipod", "aac")
    return Upload(path, path.name)


def test_oversized_uploads_are_refused(voices, upload, monkeypatch):
    done = add_uploads(voices, [upload("wide.wav", channels=9), upload("long.ogg", seconds=61, rate=8000)])
    assert "9 channels" in done.refused[0] and "lasts 61 s" in done.refused[1] and not done.records
    monkeypatch.setattr(uploaded_audio, "MOST_BYTES", 1000)
    done = add_uploads(voices, [upload("big.wav")])
    assert "larger than" in done.refused[0] and not done.records
    with pytest.raises(ConfigError, match="too many"):
        add_uploads(voices, [upload("x.wav", b"x")] * 2001)


def test_transcripts_that_do_not_fit_take_nothing(voices, upload):
    with pytest.raises(DataError, match="Lines of text: 3, recordings without a text: 2"):
        add_uploads(voices, [upload("a.wav"), upload("b.wav")], pasted="eins\nzwei\ndrei")
    with pytest.raises(DataError, match=r"t.jsonl:2: each line must be a JSON object"):
        add_uploads(voices, [upload("a.wav")], [upload("t.jsonl", '{"audio_path": "a.wav", "text": "x"}\n[1]\n')])
    assert voices.records() == []


def test_an_uploaded_manifest_names_uploaded_files_only(voices, upload):
    lines = ('{"audio_path": "/etc/passwd", "text": "no"}', '{"audio_path": "/somewhere/else/a.wav", "text": "yes"}')
    done = add_uploads(voices, [upload("a.wav")], [upload("../../manifest.jsonl", "\n".join(lines))])
    assert [r["text"] for r in done.records] == ["yes"]
    assert done.refused == ["manifest.jsonl:1: there is no recording named etc/passwd."]


class Writer:
    """A model that counts what it hears."""

    def __init__(self):
        self.seconds = []

    def transcribe(self, audio, rate, **_):
        self.seconds.append(len(audio) / rate)
        return SimpleNamespace(text=f" Stück {len(self.seconds)} ")


def test_long_recordings_are_split_at_pauses(voices, lecture):
    model = Writer()
    steps = list(split_into(voices, lecture, model, speaker="L"))
    records = [s.record for s in steps]
    assert records == voices.records() and len(records) >= 2 and all(r["draft"] for r in records)
    assert [(s.done, s.of) for s in steps] == [(i, len(records)) for i in range(1, len(records) + 1)]
    assert max(model.seconds) <= 15 and sum(model.seconds) > 24
    assert [r["source_start"] for r in records] == sorted(r["source_start"] for r in records)
    assert records[1]["text"] == "Stück 2" and records[1]["source"] == "lecture" and records[1]["speaker"] == "L"


def test_splitting_goes_on_where_it_was_cut_off(voices, lecture):
    """Also after a piece was corrected and another one removed: neither is made again."""
    work = split_into(voices, lecture)
    first, second = next(work).record, next(work).record
    work.close()
    voices.edit(first["id"], text="corrected")
    voices.remove([second["id"]])
    rest = [s.record for s in split_into(voices, lecture)]
    assert rest[:2] == [None, None] and None not in rest[2:] and rest[2:]
    assert [r["text"] for r in voices.records()] == ["corrected", *[""] * len(rest[2:])]


def test_a_recording_without_speech_is_told(voices, tmp_path):
    soundfile.write(tmp_path / "x.wav", 1e-4 * np.random.default_rng(0).standard_normal(16000), 16000)
    with pytest.raises(AudioError, match=r"still.wav: no speech stands out"):
        list(split_into(voices, Upload(tmp_path / "x.wav", "still.wav")))


@pytest.mark.parametrize("subtype", ["PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
def test_every_kind_of_wav(voices, upload, subtype):
    """24-bit and float samples, stereo at 48 kHz: kept as 16 bits, mono, at the same rate."""
    done = add_uploads(voices, [upload("a.wav", rate=48000, channels=2, subtype=subtype)], pasted="eins")
    [record] = done.records
    stored, rate = soundfile.read(voices.audio(record))
    assert rate == 48000 and stored.ndim == 1 and not done.refused
    near = 0.02 if subtype == "ULAW" else 1e-4
    assert np.abs(stored - tone(1.0, 48000)).max() < near


def test_a_float_wav_beyond_full_scale_is_scaled_not_clipped(voices, tmp_path):
    soundfile.write(tmp_path / "loud.wav", 10 * tone(1.0, 16000), 16000, subtype="FLOAT")
    [record] = add_uploads(voices, [Upload(tmp_path / "loud.wav", "loud.wav")]).records
    stored, _ = soundfile.read(voices.audio(record))
    loud = 10 * tone(1.0, 16000)
    assert np.abs(stored - loud / np.abs(loud).max()).max() < 1e-3


def test_the_same_file_is_taken_once(voices, upload):
    srt = "00:00:00,000 --> 00:00:01,000\neins\n\n00:00:01,500 --> 00:00:02,500\nzwei\n"
    talk, complete = upload("talk.flac", seconds=4), upload("a.wav", rate=8000)
    assert len(add_uploads(voices, [talk, complete], [upload("talk.srt", srt)]).records) == 3
    again = add_uploads(voices, [talk, Upload(complete.path, "other name.wav")], [upload("talk.srt", srt)])
    assert not again.records and len(voices.records()) == 3
    assert [line.split(":")[0] for line in again.refused] == ["other name.wav is in the data set already"]


def test_overlapping_subtitles_are_left_out(voices, upload):
    cues = [(0, 1.1), (1, 2), (3, 5), (4, 5.5), (6, 9), (7, 8), (10, 11)]
    srt = "\n\n".join(f"00:00:{a:06.3f} --> 00:00:{b:06.3f}\n{a}".replace(".", ",") for a, b in cues)
    done = add_uploads(voices, [upload("talk.flac", seconds=12, rate=8000)], [upload("talk.srt", srt)])
    assert [(r["text"], r["duration"]) for r in done.records] == [("0", 1.1), ("1", 1.0), ("10", 1.0)]
    assert len(done.refused) == 4 and done.refused[0].startswith("talk.srt:7: it overlaps another subtitle")


def test_a_recording_with_two_transcripts_takes_the_first(voices, upload):
    """Its name is that of a Mac, which is decomposed: u and diaeresis are two characters."""
    table = upload("t.csv", "file,text\n\u00fcber.wav,eins\n\u00fcber.wav,zwei\n")
    done = add_uploads(voices, [upload("u\u0308ber.wav")], [table])
    assert [r["text"] for r in done.records] == ["eins"]
    assert done.refused[0].startswith("t.csv:3: ") and done.refused[0].endswith(" has another transcript already.")


@pytest.mark.parametrize("form", ["ipod", "adts", "3gp", "matroska", "avi", "mpegts", "ac3", "aiff", "flv"])
def test_every_format_that_is_decoded_is_taken(voices, tmp_path, form):
    pytest.importorskip("av")
    path = tmp_path / "upload"
    codec = {"ac3": "ac3", "aiff": "pcm_s16be", "avi": "pcm_s16le"}.get(form, "aac")
    write_av(path, tone(1.0, 48000), 48000, form, codec)
    [record] = add_uploads(voices, [Upload(path, "Voice 3.some")], pasted="eins").records
    assert record["text"] == "eins" and abs(record["duration"] - 1) < 0.15


def test_playlists_archives_and_pages_are_no_audio(tmp_path):
    text = "\ufeffeins".encode("utf-16-le")
    for data in (text, b"#EXTM3U\nWAVE", b"#EXTM3U8\nftyp", b"PK\3\4a.wav", b"<html>", b"GIF89a", b"ffconcat"):
        (tmp_path / "t").write_bytes(data * 9)
        assert kind_of(tmp_path / "t") is None, data


def test_an_m4a_is_decoded_once_for_all_its_parts(voices, upload, tmp_path, monkeypatch):
    talk = m4a(tmp_path / "talk.m4a", 4.0)
    decoded = []
    convert = uploaded_audio._convert
    monkeypatch.setattr(uploaded_audio, "_convert", lambda *args: (decoded.append(args), convert(*args)))
    srt = "".join(f"00:00:0{i},000 --> 00:00:0{i},900\n{i}\n\n" for i in range(4))
    done = add_uploads(voices, [talk], [upload("talk.srt", srt)])
    assert [(r["text"], r["duration"]) for r in done.records] == [(str(i), 0.9) for i in range(4)] and len(decoded) == 1
    assert soundfile.info(voices.audio(done.records[0])).samplerate == 44100
    assert not list(tmp_path.glob("*.wav")) and not list(tmp_path.glob("*.part"))
    monkeypatch.setattr(uploaded_audio, "LONGEST", 1.0)
    done = add_uploads(voices, [m4a(tmp_path / "b.m4a", 3.0, 16000)])
    assert "is longer than" in done.refused[0] and not list(tmp_path.glob("*.part"))


def test_texts_that_come_later_fill_the_empty_ones(voices, upload):
    audio = [upload("Take 1.wav", rate=8000), upload("b.wav", seconds=2), upload("c.wav", seconds=3)]
    assert not add_uploads(voices, audio, pasted="c.wav\tdrei").refused
    table = upload("t.csv", "Datei;Text;Sprecher\nc.wav;another\nTake 1.wav;eins;Ann\n")
    done = add_uploads(voices, [], [table])  # the table alone: by name
    assert ([r["text"] for r in done.records], done.filled) == (["eins"], 1)
    assert [r.split(": ")[1] for r in done.refused] == [
        "c has another text already, which stays. It can be changed in Check."
    ]
    again = [Upload(audio[1].path, "renamed.wav"), audio[0]]  # by what they sound like
    done = add_uploads(voices, again, [upload("t.csv", "file,text\nrenamed.wav,zwei\nTake 1.wav,eins\n")])
    assert not done.refused and [(r["text"], r.get("speaker")) for r in voices.records()] == [
        ("eins", "Ann"),
        ("zwei", None),
        ("drei", None),
    ]


def test_recordings_without_a_fitting_text_need_a_confirmation(voices, upload):
    given = [upload("a.wav")], [upload("t.csv", "file,text\nx.wav,eins\n")]
    with pytest.raises(DataError, match=r"the texts are for x\.wav, and the recordings are named a\.wav"):
        add_uploads(voices, *given)
    assert voices.records() == [] and planned_uploads(voices, *given).unfitting
    done = add_uploads(voices, *given, confirmed=True)
    assert [r["text"] for r in done.records] == [""] and len(done.refused) == 1


def zipped(upload, *files):
    """A zip file of names and contents."""
    path = upload("set.zip", b"").path
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data.path.read_bytes() if isinstance(data, Upload) else data)
    return Upload(path, "set.zip")


def test_a_zip_file_of_recordings_and_texts(voices, upload):
    """With two recordings of one name, a name that leads out, and what a Mac and a person put into it."""
    files = [(f"{d}/a.wav", upload("a.wav", seconds=s)) for d, s in (("set/x", 1), ("../../y", 2))]
    files += [
        ("set/meta.csv", "y/a.wav|zwei\nx/a.wav|eins\n"),
        ("__MACOSX/set/x/._a.wav", "mac"),
        ("set/readme.txt", "hi"),
    ]
    archive = zipped(upload, *files)
    assert len(planned_uploads(voices, [archive]).rows) == 2
    done = add_uploads(voices, [archive])
    assert sorted((r["text"], r["duration"]) for r in done.records) == [("eins", 1.0), ("zwei", 2.0)]
    assert done.refused == ["readme.txt was not used: it does not name the recordings."]
    assert {p.name for p in archive.path.parent.glob("zip-*")} == set()


def test_zip_files_that_are_refused(voices, upload, monkeypatch):
    monkeypatch.setattr(unpacking, "_SMALL", 2**20)
    locked = zipped(upload, ("a.wav", "x"))
    data = bytearray(locked.path.read_bytes())
    data[6] |= 1  # in the file's own header, and in the list at the end
    data[data.find(b"PK\1\2") + 8] |= 1
    locked.path.write_bytes(data)
    bomb = zipped(upload, ("a.wav", bytes(2**21)))
    for archive, message in (
        (locked, "has a password"),
        (bomb, "too much"),
        (upload("c.zip", b"PK"), "cannot be unpacked"),
    ):
        with pytest.raises(DataError, match=message):
            add_uploads(voices, [archive])


@pytest.mark.parametrize(("name", "advice"), [("t.xlsx", "as CSV"), ("t.docx", "as plain text"), ("t.7z", "zip file")])
def test_other_files_are_refused_with_what_to_do(voices, upload, name, advice):
    with pytest.raises(DataError, match=rf"{name} was not used.*{advice}"):
        add_uploads(voices, [upload("a.wav")], [upload(name, "PK")])


def test_a_folder_with_short_names_and_with_a_table_that_names_none(voices, upload):
    audio = [upload("0.wav", lie="set/wavs/0.wav"), upload("1.wav", seconds=2, lie="set/wavs/1.wav")]
    table = upload("metadata.csv", "0|zero\n1|one\n", lie="set/metadata.csv")
    assert [r.text for r in planned_uploads(voices, [*audio, table]).rows] == ["zero", "one"]
    with pytest.raises(DataError, match=r"which column has the names"):  # never their order
        add_uploads(voices, audio, [upload("m.csv", "q1|zero\nq2|one\n")])
    with pytest.raises(DataError, match=r"metadata\.csv was not used: it does not name the recordings"):
        add_uploads(voices, [*audio, upload("metadata.csv", "text\nzero\none\n", lie="set/metadata.csv")])


def test_texts_in_folders_belong_to_the_recordings_beside_them(voices, upload):
    audio = [upload("1.wav", seconds=i, lie=f"set/{of}/1.wav") for i, of in enumerate(("ann", "bob", "cy"), 1)]
    texts = [
        upload("1.txt", "ann's", lie="set/ann/1.txt"),
        upload("t.csv", "file,text\n1.wav,bob's\n", lie="set/bob/t.csv"),
    ]
    assert [r.text for r in planned_uploads(voices, [*audio, *texts]).rows] == ["ann's", "bob's", ""]
