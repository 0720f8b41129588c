"""Uploaded recordings: what is taken, what is not and why."""

import numpy as np
import pytest
import soundfile
from studio_audio import tone

from stentor.errors import AudioError, ConfigError, DataError
from stentor.studio import uploaded_audio
from stentor.studio.dataset.long_recordings import split_into
from stentor.studio.dataset.uploads import add_uploads
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


def m4a(path, seconds, rate=44100):
    av = pytest.importorskip("av")
    with av.open(str(path), "w", format="ipod") as container:
        stream = container.add_stream("aac", rate=rate, layout="stereo")
        sound = np.stack([tone(seconds, rate)] * 2)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format="fltp", layout="stereo")
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return Upload(path, path.name)


def test_an_m4a_upload(voices, tmp_path):
    done = add_uploads(voices, [m4a(tmp_path / "memo.m4a", 1.0, 16000)], pasted="ein Satz")
    assert [r["text"] for r in done.records] == ["ein Satz"] and abs(done.records[0]["duration"] - 1) < 0.15


def test_subtitles_cut_a_recording(voices, upload):
    srt = "1\n00:00:00,000 --> 00:00:01,500\n<i>eins</i>\n\n2\n00:00:02,000 --> 00:00:03,000\nzwei\ndrei\n"
    done = add_uploads(voices, [upload("talk.flac", seconds=4)], [upload("talk.srt", srt)])
    assert [(r["text"], r["duration"]) for r in done.records] == [("eins", 1.5), ("zwei drei", 1.0)]


def test_oversized_uploads_are_refused(voices, upload, monkeypatch):
    done = add_uploads(voices, [upload("wide.wav", channels=9), upload("long.ogg", seconds=61, rate=8000)])
    assert "9 channels" in done.refused[0] and "lasts 61 s" in done.refused[1] and not done.records
    monkeypatch.setattr(uploaded_audio, "MOST_BYTES", 1000)
    done = add_uploads(voices, [upload("big.wav")])
    assert "larger than" in done.refused[0] and not done.records
    with pytest.raises(ConfigError, match="too many"):
        add_uploads(voices, [upload("x.wav", b"x")] * 2001)


def test_transcripts_that_do_not_fit_take_nothing(voices, upload):
    with pytest.raises(DataError, match="3 lines of text for 2 recordings"):
        add_uploads(voices, [upload("a.wav"), upload("b.wav")], pasted="eins\nzwei\ndrei")
    with pytest.raises(DataError, match=r"t.jsonl:2: each line must be a JSON object"):
        add_uploads(voices, [upload("a.wav")], [upload("t.jsonl", '{"audio_path": "a.wav", "text": "x"}\n[1]\n')])
    assert voices.records() == []


def test_an_uploaded_manifest_names_uploaded_files_only(voices, upload):
    lines = ('{"audio_path": "/etc/passwd", "text": "no"}', '{"audio_path": "/somewhere/else/a.wav", "text": "yes"}')
    done = add_uploads(voices, [upload("a.wav")], [upload("../../manifest.jsonl", "\n".join(lines))])
    assert [r["text"] for r in done.records] == ["yes"]
    assert done.refused == ["manifest.jsonl:1: there is no recording named passwd."]


def test_long_recordings_are_split_at_pauses(voices, lecture):
    drafted = []

    def draft(audio, at):
        drafted.append(len(audio) / at)
        return f"Stück {len(drafted)}"

    steps = list(split_into(voices, lecture, draft, speaker="L"))
    records = [s.record for s in steps]
    assert records == voices.records() and len(records) >= 2 and all(r["draft"] for r in records)
    assert [(s.done, s.of) for s in steps] == [(i, len(records)) for i in range(1, len(records) + 1)]
    assert max(drafted) <= 15 and sum(drafted) > 24
    assert [r["source_start"] for r in records] == sorted(r["source_start"] for r in records)
    assert records[1]["text"] == "Stück 2" and records[1]["source"] == "lecture" and records[1]["speaker"] == "L"


def test_splitting_goes_on_where_it_was_cut_off(voices, lecture):
    """Also after a piece was corrected and another one removed: neither is made again."""
    work = split_into(voices, lecture, lambda audio, rate: "draft")
    first, second = next(work).record, next(work).record
    work.close()
    voices.edit(first["id"], text="corrected")
    voices.remove([second["id"]])
    rest = [s.record for s in split_into(voices, lecture, lambda audio, rate: "draft")]
    assert rest[:2] == [None, None] and None not in rest[2:] and rest[2:]
    assert [r["text"] for r in voices.records()] == ["corrected", *["draft"] * len(rest[2:])]


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
    assert again.refused[0] == "talk.srt:1: the data set has this part of talk.flac already."
    assert again.refused[2].startswith("other name.wav is in the data set already")


def test_overlapping_subtitles_are_left_out(voices, upload):
    cues = [(0, 1.1), (1, 2), (3, 5), (4, 5.5), (6, 9), (7, 8), (10, 11)]
    srt = "\n\n".join(f"00:00:{a:06.3f} --> 00:00:{b:06.3f}\n{a}".replace(".", ",") for a, b in cues)
    done = add_uploads(voices, [upload("talk.flac", seconds=12, rate=8000)], [upload("talk.srt", srt)])
    assert [r["text"] for r in done.records] == ["0", "1", "10"]
    assert len(done.refused) == 4 and done.refused[0].startswith("talk.srt:7: it overlaps another subtitle")


def test_a_recording_with_two_transcripts_takes_the_first(voices, upload):
    done = add_uploads(voices, [upload("a.wav")], [upload("t.csv", "file,text\na.wav,eins\na.wav,zwei\n")])
    assert [r["text"] for r in done.records] == ["eins"]
    assert done.refused == ["t.csv:3: a.wav has another transcript already."]


def test_names_of_a_mac_are_matched(voices, upload):
    """Its file names are decomposed: u and diaeresis are two characters."""
    done = add_uploads(voices, [upload("u\u0308ber.wav")], [upload("t.csv", "file,text\n\u00fcber.wav,eins\n")])
    assert [r["text"] for r in done.records] == ["eins"]


def test_utf16_text_is_no_audio(tmp_path):
    (tmp_path / "t").write_bytes("\ufeffeins".encode("utf-16-le"))
    assert kind_of(tmp_path / "t") is None


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
