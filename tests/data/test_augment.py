from pathlib import Path

import numpy as np
import pytest
import soundfile
from pydantic import ValidationError

from stentor.audio.synth import say
from stentor.data import augment
from stentor.data.augment import Augment, Noise, Reverb, SpecAugment, change_speed, change_voice, telephone
from stentor.errors import DataError

REAL = Path(__file__).parents[2] / ".." / "shared" / "data" / "noise_rir"
ALL = {
    "speed": [0.9, 1.1],
    "voice": [0.9, 1.1],
    "reverb": {},
    "noise": {"builtin": ["white", "pink", "babble"]},
    "gain": [-6, 6],
    "band": 0.3,
    "spec_augment": {},
}


@pytest.fixture(scope="module")
def speech():
    return say("please turn on the kitchen light", "en-us").audio


def generator(seed=0):
    return np.random.default_rng(seed)


def tone(hertz, seconds=1.0, rate=16000):
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def pitch(audio):
    """Hz of the strongest component."""
    return np.argmax(np.abs(np.fft.rfft(audio))) * 16000 / len(audio)


def decibels(a, b):
    return 10 * np.log10(np.mean(np.square(a, dtype=float)) / np.mean(np.square(b, dtype=float)))


def test_a_pure_function_of_the_generator(speech):
    change = Augment.model_validate(ALL)
    first, again, other = (change.apply(speech, generator(seed), 0.9) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.dtype == np.float32 and np.abs(first).max() <= 1
    assert len(first) == len(other) == round(len(speech) / 0.9)


def test_nothing_is_changed_by_default(speech):
    assert Augment().apply(speech, generator()) is speech
    assert Augment().speed_factor(generator()) == 1.0


def test_speed_changes_length_and_pitch_alike():
    for factor in (0.9, 1.1, 1.37):
        changed = change_speed(tone(400), factor)
        assert len(changed) == round(16000 / factor)
        assert pitch(changed) == pytest.approx(400 * factor, rel=0.01)
    drawn = [Augment(speed=[0.9, 1.0, 1.1]).speed_factor(generator(i)) for i in range(50)]
    assert set(drawn) == {0.9, 1.0, 1.1}


def test_voice_changes_pitch_but_neither_length_nor_timing(speech):
    for factor in (0.8, 1.25):
        changed = change_voice(tone(400), factor)
        assert len(changed) == 16000
        assert pitch(changed) == pytest.approx(400 * factor, rel=0.01)
        # The loudness contour (50 ms steps) stays where it was.
        shifted = change_voice(speech, factor)
        before, after = (
            np.sqrt(np.square(x[: len(x) // 800 * 800].reshape(-1, 800)).mean(1)) for x in (speech, shifted)
        )
        assert np.corrcoef(before, after)[0, 1] > 0.9
    assert len(change_voice(speech[:100], 1.2)) == 100


@pytest.mark.parametrize("kind", ["white", "pink", "brown", "hum", "babble"])
def test_noise_has_the_drawn_level(speech, kind):
    noisy = Noise(builtin=[kind], snr=(12, 12), p=1).apply(speech, generator())
    assert decibels(speech, noisy - speech) == pytest.approx(12, abs=0.01)


def test_noise_colours_differ():
    def share_below(kind, hertz=1000):
        power = np.abs(np.fft.rfft(augment.builtin_noise(kind, np.zeros(16000, np.float32), generator(), 16000))) ** 2
        return power[:hertz].sum() / power.sum()

    assert share_below("white") < 0.2 < share_below("pink") < 0.9 < share_below("brown")


def test_noise_leaves_silence_alone():
    silence = np.zeros(8000, np.float32)
    assert np.array_equal(Noise(builtin=["white"], p=1).apply(silence, generator()), silence)


def test_noise_files_are_found_read_and_repeated(tmp_path, speech):
    (tmp_path / "deep").mkdir()
    soundfile.write(tmp_path / "deep" / "short.wav", tone(1000, 0.05, 8000), 8000)
    change = Augment(noise=Noise(paths=[tmp_path], snr=(0, 0), p=1))
    change.check()
    added = change.noise.apply(speech, generator()) - speech
    assert decibels(speech, added) == pytest.approx(0, abs=0.01)
    assert pitch(added) == pytest.approx(1000, abs=5)


def test_reverb_keeps_time_power_and_length(tmp_path):
    click = np.zeros(8000, np.float32)
    click[4000] = 0.5
    wet = Reverb(p=1).apply(click, generator())
    assert np.argmax(np.abs(wet)) == 4000 and len(wet) == 8000
    assert decibels(click, wet) == pytest.approx(0, abs=0.01)
    assert not wet[:3990].any() or np.abs(wet[:3990]).max() < 1e-6
    # A recorded response whose direct sound comes late does not delay the speech.
    late = np.zeros(800, np.float32)
    late[300], late[500] = 1.0, 0.4
    soundfile.write(tmp_path / "late.wav", late, 16000, subtype="FLOAT")
    wet = Reverb(paths=[tmp_path], simulated=False).apply(click, generator())
    assert np.argmax(np.abs(wet)) == 4000 and wet[4200] / wet[4000] == pytest.approx(0.4, abs=1e-3)


def test_simulated_rooms_fall_by_sixty_decibels():
    response = augment.simulate_response(0.4, generator(), 16000)
    tail = response[1:]
    first, last = tail[:1600], tail[-1600:]  # their middles lie 0.3 s apart: 45 dB
    assert decibels(first, last) == pytest.approx(45, abs=2)


def test_telephone_takes_the_band_only():
    for hertz, passes in ((100, False), (1000, True), (6000, False)):
        loss = decibels(tone(hertz), telephone(tone(hertz)))
        assert (abs(loss) < 0.5) if passes else (loss > 20)


def test_gain_is_in_decibels_and_never_clips(speech):
    assert decibels(Augment(gain=(-6, -6)).apply(speech, generator()), speech) == pytest.approx(-6, abs=1e-3)
    assert np.abs(Augment(gain=(40, 40)).apply(speech, generator())).max() == pytest.approx(1.0)


def test_spec_augment_on_numpy_and_torch():
    import torch

    mask = SpecAugment(time_masks=2, time_width=20, freq_masks=2, freq_width=15)
    features = np.arange(200 * 80, dtype=np.float32).reshape(200, 80)
    original = features.copy()
    masked = mask.apply(features, generator(3))
    assert np.array_equal(features, original)
    changed = masked != features
    stripes = mask.stripes(200, 80, generator(3))
    assert [axis for axis, _, _ in stripes] == [0, 0, 1, 1]
    covered = np.zeros_like(changed)
    for axis, first, last in stripes:
        assert last - first <= (20, 15)[axis]
        covered[(slice(first, last), slice(None)) if axis == 0 else (slice(None), slice(first, last))] = True
    assert changed.any() and not (changed & ~covered).any()
    assert np.allclose(masked[covered], features.mean())
    assert np.array_equal(mask.apply(torch.from_numpy(features), generator(3)).numpy(), masked)
    assert all(last - first <= 2 for axis, first, last in mask.stripes(10, 80, generator(1)) if axis == 0)
    assert SpecAugment(p=0).stripes(200, 80, generator()) == []


def test_files_are_checked_when_training_starts_not_before(tmp_path):
    change = Augment.model_validate({"noise": {"paths": [str(tmp_path / "nose")]}})
    (tmp_path / "noise").mkdir()
    with pytest.raises(DataError, match=r"did you mean .*noise"):
        change.check()
    with pytest.raises(DataError, match="holds no audio"):
        Augment(noise=Noise(paths=[tmp_path / "noise"])).check()


@pytest.mark.parametrize(
    ("kind", "settings", "mend"),
    [(Noise, {}, "`paths` or `builtin`"), (Reverb, {"simulated": False}, "`paths` or `simulated: true`")],
)
def test_what_comes_from_nowhere_is_refused(kind, settings, mend):
    with pytest.raises(ValidationError, match=mend):
        kind(**settings)


@pytest.mark.parametrize("bad", [{"snr": [20, 5]}, {"p": 2}, {"builtin": ["rain"]}])
def test_wrong_values_are_refused(bad):
    with pytest.raises(ValueError):
        Augment.model_validate({"noise": bad})


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/noise_rir is not here")
def test_recorded_noises_and_rooms(speech):
    rooms, noises = sorted(REAL.glob("rir*.wav")), sorted(REAL.glob("noise*.wav"))
    change = Augment(reverb=Reverb(paths=rooms, p=1), noise=Noise(paths=noises, snr=(10, 10), p=1))
    change.check()
    for seed in range(6):
        changed = change.apply(speech, generator(seed))
        assert len(changed) == len(speech) and np.isfinite(changed).all()
        assert decibels(changed, speech) == pytest.approx(0.4, abs=1.5)
