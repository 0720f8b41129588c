"""Reading and writing audio: right samples from good files, the right reason for every kind of bad one."""

import struct
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.audio.io import AudioInfo, probe, read, write
from stentor.audio.synth import say
from stentor.errors import AudioError
from stentor.inference.recording import FileRecording

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
RATE = 16000


def tone(seconds: float = 2.0, rate: int = RATE, frequency: float = 300.0) -> np.ndarray:
    """A tone that gets louder, so that no two pieces are alike."""
    t = np.arange(round(seconds * rate)) / rate
    return (0.5 * t / seconds * np.sin(2 * np.pi * frequency * t)).astype(np.float32)


def put(path: Path, audio: np.ndarray, rate: int = RATE, **how) -> Path:
    soundfile.write(str(path), audio, rate, **how)
    return path


def cut(path: Path, share: float = 0.5) -> Path:
    """The file without its end."""
    content = path.read_bytes()
    short = path.with_name(f"cut-{path.name}")
    short.write_bytes(content[: int(len(content) * share)])
    return short


def reason(path: Path, **arguments) -> str:
    with pytest.raises(AudioError) as error:
        read(path, **arguments)
    assert str(path) in str(error.value)
    return error.value.reason


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    """Correlation without any shift: 1 for the same audio at the same place."""
    return float(np.corrcoef(one, other)[0, 1])


# How to write each, and how like the original it must be.
FORMATS = {
    "a.wav": ({"subtype": "PCM_16"}, 0.999999),
    "a24.wav": ({"subtype": "PCM_24"}, 0.999999),
    "af.wav": ({"subtype": "FLOAT"}, 0.999999),
    "au.wav": ({"subtype": "ULAW"}, 0.999),
    "a.flac": ({}, 0.999999),
    "a.mp3": ({}, 0.98),
    "a.ogg": ({}, 0.98),
    "a.opus": ({"format": "OGG", "subtype": "OPUS"}, 0.95),
    "a.sph": ({"format": "NIST", "subtype": "PCM_16"}, 0.999999),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_and_pieces(tmp_path, name):
    options, least = FORMATS[name]
    audio = say("one two three four").audio
    path = put(tmp_path / name, audio, **options)
    info = probe(path)
    assert (info.sample_rate, info.channels, info.frames) == (RATE, 1, len(audio))
    decoded = read(path)
    assert decoded.dtype == np.float32 and decoded.shape == audio.shape
    assert likeness(decoded, audio) > least
    piece = read(path, start=0.25, duration=0.5)
    assert len(piece) == RATE // 2 and likeness(piece, decoded[4000:12000]) > 0.9999


def test_channels_are_averaged_and_rates_converted(tmp_path):
    left, right = tone(rate=44100), tone(rate=44100, frequency=500.0)
    path = put(tmp_path / "stereo.wav", np.stack([left, right], 1), 44100, subtype="FLOAT")
    mono = read(path, rate=8000)
    assert len(mono) == 16000
    expected = (tone(rate=8000) + tone(rate=8000, frequency=500.0)) / 2
    assert np.abs(mono - expected)[100:-100].max() < 1e-3
    assert probe(path) == AudioInfo(2.0, 44100, 2, 88200, "WAV/FLOAT")


def test_missing_empty_and_unreadable(tmp_path):
    assert reason(tmp_path / "none.wav") == reason(tmp_path) == "missing"
    nothing = tmp_path / "nothing.wav"
    nothing.touch()
    assert reason(nothing) == "empty"
    header = put(tmp_path / "header.wav", np.zeros(0))
    assert reason(header) == reason(header, start=1.0) == "empty" and probe(header).duration == 0
    text = tmp_path / "text.wav"
    text.write_text("this is no audio, whatever the name says\n" * 20)
    assert reason(text) == "unreadable"
    no_data = tmp_path / "no_data.wav"
    no_data.write_bytes(put(tmp_path / "a.wav", tone()).read_bytes()[:36])
    assert reason(no_data) == "unreadable"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(tmp_path, value):
    audio = tone()
    audio[5000] = value
    path = put(tmp_path / "a.wav", audio, subtype="FLOAT")
    assert reason(path) == "not_finite"
    assert len(read(path, start=1.0)) == RATE  # the rest of the file is sound


def test_silence_is_what_16_bits_cannot_show(tmp_path):
    quiet, silent = tone() * 2e-4, tone() * 5e-5
    assert len(read(put(tmp_path / "quiet.wav", quiet, subtype="FLOAT"))) == len(quiet)
    path = put(tmp_path / "silent.wav", silent, subtype="FLOAT")
    assert reason(path) == "silent"
    assert np.array_equal(read(path, check_silence=False), silent)


WITH_LENGTH = {
    "a.aiff": ({"subtype": "PCM_16"}, 0.999999),
    "a.au": ({"subtype": "PCM_16"}, 0.999999),
    "a.w64": ({"subtype": "PCM_16"}, 0.999999),
    "a.rf64": ({"format": "RF64", "subtype": "PCM_16"}, 0.999999),
    "a.caf": ({"subtype": "PCM_16"}, 0.999999),
    "a.voc": ({"subtype": "PCM_16"}, 0.999999),
}


@pytest.mark.parametrize("name", [*FORMATS, *WITH_LENGTH])
def test_truncated_files(tmp_path, name):
    audio = tone(4.0) + np.random.default_rng(0).normal(size=4 * RATE).astype(np.float32) * 0.05
    path = put(tmp_path / name, audio, **{**FORMATS, **WITH_LENGTH}[name][0])
    for share in (0.5, 0.9):
        # libsndfile refuses a CAF file that is cut short before anybody reads it.
        assert reason(cut(path, share)) == ("unreadable" if name == "a.caf" else "truncated")
    assert len(read(path)) / RATE == pytest.approx(4.0, abs=0.05)


def test_ogg_that_ends_between_two_pages_is_complete(tmp_path):
    path = put(tmp_path / "a.ogg", np.random.default_rng(0).normal(size=20 * RATE) * 0.1)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"OggS\0", 0, len(content) * 3 // 4)])
    info = probe(path)
    assert 13 < info.duration < 16 and info.frames == len(read(path)) and "recorder was killed" in info.notes[0]


@pytest.mark.parametrize("name", ["a.au", "a.snd", "a.vox", "a.gsm"])
def test_text_that_is_called_audio(tmp_path, name):
    (tmp_path / name).write_text("Dear reader, this is no audio at all.\n" * 100)
    assert reason(tmp_path / name) == "unreadable"


def test_absurdly_large_samples_are_no_audio(tmp_path):
    assert reason(put(tmp_path / "a.wav", tone() * 8e29, subtype="FLOAT")) == "not_finite"
    assert np.abs(read(put(tmp_path / "b.wav", tone() * 32768, subtype="FLOAT"))).max() > 10000


def test_asking_beyond_the_end(tmp_path):
    path = put(tmp_path / "a.wav", tone())
    assert reason(path, start=1.0, duration=2.0) == reason(path, start=2.0) == reason(path, start=9.0) == "truncated"
    assert len(read(path, start=1.9, duration=0.2)) == 1600  # a manifest's rounding is not an error
    assert len(read(path, duration=2.05)) == 2 * RATE


def test_headers_of_pipes_and_of_untagged_mp3_do_not_know_the_length(tmp_path):
    path = put(tmp_path / "pipe.wav", tone(), subtype="PCM_16")
    raw = bytearray(path.read_bytes())
    place = raw.index(b"data") + 4
    raw[place : place + 4] = raw[4:8] = b"\xff\xff\xff\xff"
    path.write_bytes(raw)
    assert len(read(path)) == 2 * RATE
    # A variable bit rate without its tag: the length that libsndfile guesses from the first frames is far off.
    loud = np.random.default_rng(0).normal(size=5 * RATE).astype(np.float32) * 0.2
    mp3 = put(
        tmp_path / "a.mp3",
        np.concatenate([np.zeros(5 * RATE, np.float32), loud]),
        bitrate_mode="VARIABLE",
        compression_level=0.3,
    )
    raw = mp3.read_bytes()
    mp3.write_bytes(raw[raw.index(b"\xff\xf3", 4) :])
    assert soundfile.info(str(mp3)).duration > 11
    assert probe(mp3).duration == pytest.approx(10, abs=0.2) and len(read(mp3)) == probe(mp3).frames


def test_av_reads_the_rest(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "a.m4a"
    audio = say("one two three four five").audio
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=RATE, layout="mono")
        resampler = av.AudioResampler("fltp", "mono", RATE, frame_size=1024)
        frame = av.AudioFrame.from_ndarray(audio[None], format="fltp", layout="mono")
        frame.rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
        for piece in [*resampler.resample(frame), *resampler.resample(None), None]:
            container.mux(stream.encode(piece))
    assert probe(path).duration == pytest.approx(len(audio) / RATE, abs=0.02) and probe(path).sample_rate == RATE
    decoded = read(path)
    assert likeness(decoded[: len(audio)], audio) > 0.98
    assert np.array_equal(read(path, start=0.5, duration=1.0), decoded[8000:24000])
    assert reason(path, start=1.0, duration=3.0) == "truncated"
    assert reason(cut(path)) == "unreadable"  # the index stands at the end


def written_to_a_pipe(path: Path, size: int = 0) -> Path:
    """The file as a program leaves it that cannot go back to write its length; of a WAV `size`."""
    content = bytearray(path.read_bytes())
    if path.suffix == ".flac":  # the last 36 bits of the length, in STREAMINFO
        content[21] &= 0xF0
        content[22:26] = bytes(4)
    else:
        place = content.index(b"data") + 4
        content[4:8] = content[place : place + 4] = struct.pack("<I", size)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("seconds", [2.0, 130.0])
@pytest.mark.parametrize(("name", "size"), [("a.flac", 0), *[("a.wav", n) for n in (0, 0x7FFFF000, 0xFFFFFFFF)]])
def test_files_that_were_written_to_a_pipe(tmp_path, seconds, name, size):
    pytest.importorskip("av")
    audio = tone(seconds)
    path = written_to_a_pipe(put(tmp_path / name, audio, subtype="PCM_16"), size)
    assert probe(path).frames == len(audio)
    recording = FileRecording(path, RATE)
    blocks = list(recording.blocks())
    assert max(map(len, blocks)) <= 70 * RATE and np.array_equal(np.concatenate(blocks), read(path))
    assert np.abs(read(path) - audio).max() < 2**-15
    assert np.array_equal(recording.read(RATE, 2 * RATE), read(path)[RATE : 2 * RATE])
    if name == "a.flac":
        assert reason(cut(path)) == "truncated"


def test_an_empty_wav_with_chunks_behind_stays_empty(tmp_path):
    path = put(tmp_path / "a.wav", np.zeros(0, np.float32))
    content = path.read_bytes() + b"LIST" + struct.pack("<I", 8) + b"INFOabcd"
    path.write_bytes(content[:4] + struct.pack("<I", len(content) - 8) + content[8:])
    assert probe(path).frames == 0 and reason(path) == "empty"


def test_without_av_the_message_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "a.m4a"
    path.write_bytes(bytes(range(256)) * 8)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(AudioError, match=r"pip install 'stentor\[av\]'"):
        read(path)


@pytest.mark.parametrize("name", ["a.wav", "b.flac"])
def test_write_keeps_16_bit_audio_bit_for_bit(tmp_path, name):
    values = np.concatenate([np.arange(-32768, 32768, 7), [32767]]).astype(np.int16)
    path = tmp_path / "new" / name
    write(path, values / 32768, 22050)
    again, rate = soundfile.read(str(path), dtype="int16")
    assert rate == 22050 and np.array_equal(again, values)
    write(path, read(path, rate=22050), 22050)
    assert np.array_equal(soundfile.read(str(path), dtype="int16")[0], values)
    assert [p.name for p in path.parent.iterdir()] == [name]


def test_write_scales_peaks_and_refuses_what_is_no_audio(tmp_path):
    path = tmp_path / "a.wav"
    write(path, tone() * 4, RATE)
    assert np.abs(read(path) - tone() * 2).max() < 2e-3  # the shape stays, the peak is 1
    before = path.read_bytes()
    for audio, kind in ((np.full(10, np.nan), "not_finite"), (np.zeros(0), "empty"), (np.zeros((2, 10)), "empty")):
        with pytest.raises(AudioError) as error:
            write(path, audio, RATE)
        assert error.value.reason == kind
    with pytest.raises(AudioError, match=r"\.wav, \.flac or \.ogg"):
        write(tmp_path / "a.mp3", tone(), RATE)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.wav"
    write(path, tone(), RATE)
    before = path.read_bytes()

    def full(*_, **__):
        Path(_[0]).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(soundfile, "write", full)
    with pytest.raises(OSError, match="No space"):
        write(path, tone() * 0.5, RATE)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


# (rate, channels, seconds) of public test fixtures, or the reason why they are refused
FIXTURES = {
    "broken_bad.wav": "unreadable",
    "broken_invalid.wav": "unreadable",
    "empty_zero_samples.wav": "empty",
    "cold_corpus_24bit.wav": (16000, 1, 25.718),
    "cold_corpus_32bit_float.wav": (16000, 1, 25.718),
    "example3.sph": (16000, 1, 2.890),
    "speech.opus": (16000, 1, 8.064),
    "stereo.mp3": (8000, 2, 1.0),
    "stereo.opus": (8000, 2, 1.005),
    "stereo.sph": (8000, 2, 1.0),
    "stereo_8k.wav": (8000, 2, 1.0),
}


@pytest.mark.parametrize("name", FIXTURES)
def test_public_fixtures(name):
    path = SHARED / "formats" / name
    if not path.exists():
        pytest.skip("shared/data/formats is not here")
    expected = FIXTURES[name]
    if isinstance(expected, str):
        assert reason(path) == expected
        return
    info = probe(path)
    assert (info.sample_rate, info.channels) == expected[:2] and info.duration == pytest.approx(expected[2], abs=1e-3)
    assert len(read(path)) / RATE == pytest.approx(expected[2], abs=1e-3)


def test_the_same_recording_in_three_containers():
    folder = SHARED / "formats"
    if not folder.exists():
        pytest.skip("shared/data/formats is not here")
    assert np.abs(read(folder / "stereo.sph") - read(folder / "stereo_8k.wav")).max() == 0
    deep, floating = read(folder / "cold_corpus_24bit.wav"), read(folder / "cold_corpus_32bit_float.wav")
    assert np.abs(deep - floating).max() < 1e-6


def test_real_mp3_speech_passes():
    clips = sorted((SHARED / "librispeech").rglob("*.mp3"))[::60]
    if not clips:
        pytest.skip("shared/data/librispeech is not here")
    for path in clips:
        audio = read(path)
        assert len(audio) / RATE == pytest.approx(probe(path).duration, abs=0.02)
