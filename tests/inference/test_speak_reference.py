"""References: what is taken of a recording, what is refused, and voices that are kept in files."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from speaking import RATE, make_codec, voiced

from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.speak.reference import levelled, make_voice, trimmed
from stentor.inference.speak.voice import Voice, load_voice, save_voice


@pytest.fixture(scope="module")
def codec():
    return make_codec()


def silence(seconds):
    return np.zeros(round(seconds * RATE), np.float32)


def pieces(*parts):
    return np.concatenate(parts)


def test_silence_goes_and_speech_stays():
    audio = pieces(silence(1), voiced(1.5), silence(2), voiced(1.0, 200), silence(0.3), voiced(0.5), silence(1))
    out = trimmed(audio, RATE)
    # 3 s of speech, a pause of 0.3 s as it is, one of 2 s as 0.2 s, and 0.1 s at each end; 0.03 s beside speech stay
    assert len(out) / RATE == pytest.approx(3.7, abs=0.15)
    assert np.abs(out[: RATE // 20]).max() == 0 and np.abs(out[RATE // 5 : RATE]).min() < np.abs(out).max()
    with pytest.raises(AudioError, match="contains no speech"):
        trimmed(pieces(silence(2), 0.5 * np.ones(300, np.float32), silence(2)), RATE)


def test_quiet_references_are_raised_and_loud_ones_left():
    quiet, loud = 0.01 * voiced(1), voiced(1)
    assert np.sqrt(np.square(levelled(quiet)).mean()) == pytest.approx(0.1, rel=1e-3)
    loud *= 0.2 / np.sqrt(np.square(loud).mean())
    assert np.array_equal(levelled(loud), loud)
    click = 0.01 * voiced(1)
    click[100] = 0.5
    assert np.abs(levelled(click)).max() == pytest.approx(0.99)


def test_a_file_of_any_rate_and_shape_is_the_array(codec, tmp_path):
    import soundfile

    audio = pieces(silence(0.5), voiced(2), silence(0.5))
    soundfile.write(tmp_path / "a.wav", np.stack([audio, audio], 1), RATE)
    file = make_voice(tmp_path / "a.wav", codec, "what is said")
    array = make_voice(np.stack([audio, audio]), codec, "what is said ", rate=RATE)
    assert file.codes.shape == array.codes.shape and (file.codes == array.codes).mean() > 0.99
    assert file.text == array.text == "what is said" and file.frames == file.codes.shape[1]
    assert file.source == str(tmp_path / "a.wav") and array.source is None


@pytest.mark.parametrize(
    ("audio", "text", "reason", "message"),
    [
        (voiced(35), "x", "too_long", r"has 35.\d s of speech; a reference with a transcript"),
        (silence(3), "x", "silent", "The reference is silent"),
        (voiced(2), None, "no_speech", "found no words in The reference: give its transcript"),
        (pieces(silence(1), voiced(0.2), silence(1)), "x", "too_short", r"The reference has 0.4\d s of speech"),
    ],
)
def test_arrays_that_are_no_reference(codec, audio, text, reason, message):
    """Of files, and what else is wrong, the golden messages of tests/errors/wrong_speak.txt say it."""
    with pytest.raises(AudioError, match=message) as error:
        make_voice(audio, codec, text, rate=RATE, transcribe=lambda *_: " ")
    assert error.value.reason == reason


def test_a_long_one_is_cut_at_a_pause_and_then_written_down(codec):
    transcribed, remarks = [], []

    def transcribe(audio, rate, language):
        transcribed.append((len(audio) / rate, rate, language))
        return " so much "

    long = pieces(voiced(9), silence(0.3), voiced(8), silence(0.3), voiced(9))
    voice = make_voice(long, codec, None, "en", RATE, transcribe, remarks.append)
    assert voice.text == "so much" and voice.language == "en"
    ((seconds, rate, language),) = transcribed
    assert seconds == pytest.approx(17.5, abs=0.2) and (rate, language) == (RATE, "en")
    assert voice.frames == pytest.approx(seconds * codec.frame_rate, abs=1)
    assert "the first 17." in remarks[0] and remarks[1] == "Transcript of The reference: so much"


def test_a_long_one_with_its_text_is_used_with_a_remark(codec):
    remarks = []
    voice = make_voice(voiced(25), codec, "x", rate=RATE, remark=remarks.append)
    assert voice.frames > 24 * codec.frame_rate
    assert len(remarks) == 1 and "3 to 10 s of one voice are best" in remarks[0]


def test_a_voice_file_is_read_as_it_was_written(codec, tmp_path):
    voice = make_voice(voiced(2), codec, "què?", "ca", RATE)
    path = save_voice(voice, tmp_path / "new" / "anna.v2", codec)
    assert path == tmp_path / "new" / "anna.v2.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    assert (about["format"], about["version"], about["text"], about["language"]) == ("stentor-voice", 1, "què?", "ca")
    assert about["frames"] == voice.frames and about["codec"]["type"] == "mel_rvq"
    for name in ("anna.v2", "anna.v2.json", "anna.v2.safetensors"):
        again = load_voice(tmp_path / "new" / name, codec)
        assert np.array_equal(again.codes, voice.codes) and again.codes.dtype == voice.codes.dtype
        assert (again.text, again.language, again.source) == (voice.text, voice.language, voice.source)


def test_a_voice_of_another_codec_is_refused(codec, tmp_path):
    save_voice(Voice(codec.encode([voiced(2)])[0], "x", source="anna.wav"), tmp_path / "anna", codec)
    with pytest.raises(ConfigError, match=r"fitted on other audio: save it .* from its reference \(anna.wav\)"):
        load_voice(tmp_path / "anna", make_codec(seed=7))
    with pytest.raises(ConfigError, match=r"this model has the codec mel_rvq \(2 x 16 codes at 50 Hz\): save it again"):
        load_voice(tmp_path / "anna", make_codec(codebooks=2))


def test_damaged_voice_files(codec, tmp_path):
    base = tmp_path / "anna"
    save_voice(Voice(codec.encode([voiced(2)])[0], "x"), base, codec)
    intact = base.with_suffix(".json").read_text()
    changes = (("stentor-voice", "other"), ('"text"', '"texts"'), ('"rms": null', '"rms": "loud"'))
    changes += (('"seconds": ', '"seconds": "2", "more": '), ('"type": "', '"type": 1, "name": "'))
    assert all(before in intact for before, _ in changes)
    for text in ("[]", "{}", *(intact.replace(*change) for change in changes)):
        base.with_suffix(".json").write_text(text)
        with pytest.raises(DataError, match="damaged or not a voice file"):
            load_voice(base, codec)
    base.with_suffix(".json").write_text(intact.replace('"version": 1', '"version": 2'))
    with pytest.raises(ConfigError, match="format version 2 of a newer Stentor; this version reads 1"):
        load_voice(base, codec)
    base.with_suffix(".json").write_text(intact)
    for codes in (np.full((3, 5), 16, np.int16), np.zeros((2, 5), np.int16), np.zeros((3, 0), np.int16)):
        save_file({"codes": codes}, base.with_suffix(".safetensors"))
        with pytest.raises(DataError, match="damaged"):
            load_voice(base, codec)
    base.with_suffix(".safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="damaged or not a voice file"):
        load_voice(base, codec)
