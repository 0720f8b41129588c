"""The codec mel_rvq: what it gives back, that nothing but the clip decides on its codes, and what it refuses."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.audio.synth import say
from stentor.config.load import load
from stentor.errors import AudioError, ConfigError, DataError
from stentor.models.codecs.base import Codec, at_peak, open_codec
from stentor.models.codecs.mel_rvq.codec import kmeans, nearest, residual_kmeans, residual_nearest
from stentor.models.codecs.mel_rvq.config import MelRVQ
from stentor.models.codecs.mel_rvq.decoder import pulse_train
from stentor.models.codecs.mel_rvq.decoder_training import batch, decoder_loss, pitch_of, prepared
from stentor.models.codecs.mel_rvq.spectra import Spectra
from stentor.models.codecs.resynthesis import mel_difference, resynthesis

SMALL = {"type": "mel_rvq", "entries": 32, "rounds": 4, "iterations": 8}


@pytest.fixture(scope="module")
def clips() -> list[np.ndarray]:
    """Five spoken clips at 16 kHz, none of them a whole number of frames."""
    texts = ["one two", "three", "four five six", "seven eight", "nine"]
    waveforms = [at_peak(say(text, voice).audio) for text, voice in zip(texts, ["en-us", "en-us+f3"] * 3)]
    return [clip if len(clip) % 320 else clip[:-7] for clip in waveforms]


@pytest.fixture(scope="module")
def codec(clips):
    return Codec.model_validate(SMALL).fit(clips)


def tone(hz: float, seconds: float = 0.5, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * 16000)) / 16000)).astype(np.float32)


def test_interface(codec, clips):
    assert (codec.type, codec.sample_rate, codec.codebooks, codec.vocabulary) == ("mel_rvq", 16000, 4, 32)
    assert codec.hop == 320 and codec.frame_rate == 50.0 and codec.dtype == np.int16
    assert [codec.frames(n) for n in (320, 321, 640)] == [1, 2, 2]
    for clip, codes in zip(clips, codec.encode(clips)):
        assert codes.dtype == np.int16 and codes.shape == (4, codec.frames(len(clip)))
        assert codes.min() >= 0 and codes.max() < 32
        [decoded] = codec.decode([codes])
        assert decoded.dtype == np.float32 and decoded.shape == (codes.shape[1] * 320,)


def test_codes_do_not_depend_on_the_batch(codec, clips):
    together = codec.encode(clips)
    alone = [codec.encode([clip])[0] for clip in reversed(clips)][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(together, alone))
    decoded = codec.decode(together)
    assert all(np.array_equal(codec.decode([codes])[0], wave) for codes, wave in zip(together, decoded))


def test_nothing_changes_while_a_model_trains_in_bfloat16(codec, clips):
    codes = codec.encode(clips)
    sound = codec.decode(codes)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(np.array_equal(a, b) for a, b in zip(codec.encode(clips), codes, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(codec.decode(codes), sound, strict=True))


def test_the_fit_is_a_function_of_audio_and_seed(clips):
    section = Codec.model_validate(SMALL)
    one, same, other = (section.fit(iter(clips), seed).encode(clips)[0] for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_speech_survives(codec, clips):
    """Decoded codes sound like the clip, and not like another: far nearer than the average of the corpus."""
    report = resynthesis(codec, clips)
    coarse = Codec.model_validate({**SMALL, "codebooks": 1, "entries": 2}).fit(clips)
    assert report.clips == 5 and report.seconds == pytest.approx(sum(map(len, clips)) / 16000)
    assert report.mel_distance < 0.6 * resynthesis(coarse, clips).mel_distance
    assert report.bit_rate == 50 * 4 * 5
    assert all(0.1 < used <= 1 for used in report.usage) and len(report.usage) == 4


def test_each_codebook_helps(clips):
    distances = [
        resynthesis(Codec.model_validate({**SMALL, "codebooks": n}).fit(clips), clips[:2]).mel_distance
        for n in (1, 2, 4)
    ]
    assert distances[0] > distances[1] > distances[2]


def test_save_and_open(codec, clips, tmp_path):
    codec.save(tmp_path / "codec")
    assert {file.name for file in (tmp_path / "codec").iterdir()} == {"config.json", "model.safetensors"}
    again = open_codec(str(tmp_path / "codec"))
    codes = codec.encode(clips)
    assert all(np.array_equal(a, b) for a, b in zip(again.encode(clips), codes))
    assert np.array_equal(again.decode(codes[:1])[0], codec.decode(codes[:1])[0])
    section = Codec.model_validate({"type": "mel_rvq", "from": str(tmp_path / "codec"), "iterations": 1})
    fewer = section.open()
    assert fewer.settings["iterations"] == 1 and np.array_equal(fewer.encode(clips)[0], codes[0])
    assert np.array_equal(pickle.loads(pickle.dumps(codec)).encode(clips)[0], codes[0])  # spawned loader workers


@pytest.mark.long
def test_a_trained_decoder(codec, clips, tmp_path):
    """It decodes better with training, is saved and opened with the codec, and no clip changes another."""
    griffin_lim = codec
    early, codec = (
        Codec.model_validate({**SMALL, "decoder": {"steps": steps, "width": 32, "layers": 1}}).fit(clips)
        for steps in (1, 40)
    )
    codes = codec.encode(clips)
    assert all(np.array_equal(a, b) for a, b in zip(codes, early.encode(clips)))
    pairs = [(codec.log_mel(c), clip) for c, clip in zip(codes, clips)]
    losses = []
    for decoder in (early.decoder, codec.decoder):
        stretches = batch([prepared(decoder, *pair) for pair in pairs], decoder, np.random.default_rng(0))
        losses.append(float(decoder_loss(decoder, *stretches, (320, 800), torch.Generator().manual_seed(0)).detach()))
    assert losses[1] < 0.8 * losses[0]
    assert resynthesis(codec, clips).mel_distance < 1.3 * resynthesis(griffin_lim, clips).mel_distance
    decoded = codec.decode(codes)
    assert [len(audio) for audio in decoded] == [c.shape[1] * 320 for c in codes]
    assert np.array_equal(codec.decode(codes[1:2])[0], decoded[1]) and np.isfinite(np.concatenate(decoded)).all()
    codec.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["decoder"] == {"width": 32, "layers": 1}
    opened = open_codec(str(tmp_path))
    assert np.array_equal(opened.decode(codes[:1])[0], decoded[0])
    assert np.array_equal(pickle.loads(pickle.dumps(opened)).decode(codes[:1])[0], decoded[0])
    weights = load_file(tmp_path / "model.safetensors")
    del weights["decoder.embed.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"damaged or incomplete.*decoder|damaged or incomplete.*embed.bias"):
        open_codec(str(tmp_path))


def test_training_a_decoder_is_a_function_of_audio_and_seed(clips):
    """Whatever was drawn before, and without a trace in what is drawn after."""
    section = Codec.model_validate({**SMALL, "decoder": {"steps": 2, "width": 16, "layers": 1}})
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one = section.fit(clips)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    same, other = section.fit(clips), section.fit(clips, seed=1)
    codes = one.encode(clips[:1])
    assert np.array_equal(one.decode(codes)[0], same.decode(codes)[0])
    assert not np.array_equal(one.decode(codes)[0], other.decode(codes)[0])


@pytest.mark.parametrize("hertz", [75.0, 120.0, 233.0, 400.0])
def test_pitch_of_tones_with_harmonics(hertz):
    time = np.arange(16000) / 16000
    audio = sum(np.sin(2 * np.pi * n * hertz * time) / n for n in range(1, 9)).astype(np.float32)
    audio[:4000] = 0.01 * np.random.default_rng(0).normal(size=4000)
    pitch = pitch_of(torch.from_numpy(audio), 160, 16000)
    assert pitch.shape == (100,) and not pitch[:20].any()
    assert (pitch[30:95] / hertz - 1).abs().max() < 0.03


def test_pulses_follow_the_pitch():
    hertz = torch.full((1, 100), 125.0)
    hertz[:, 50:] = 0
    pulses = pulse_train(hertz, 160, 16000)
    assert pulses.shape == (1, 16000) and not pulses[:, 8000:].any()
    assert int((pulses[0] > 1).sum()) in (62, 63)  # half a second of periods of 128 samples
    assert pulses[0, :8000].square().mean().item() == pytest.approx(1.0, abs=0.05)


def test_the_codec_of_an_export(codec, tmp_path):
    codec.save(tmp_path / "export" / "audio_tokenizer")
    assert open_codec(str(tmp_path / "export")).vocabulary == 32


def test_silence_and_short_clips(codec):
    [codes] = codec.encode([np.zeros(1000, np.float32)])
    assert codes.shape == (4, 4) and (codes == codes[:, :1]).all()
    assert codec.encode([np.zeros(320, np.float32)])[0].shape == (4, 1)
    with pytest.raises(AudioError, match=r"has 319 samples; the codec mel_rvq needs 320 \(20 ms\)") as caught:
        codec.encode([np.zeros(319, np.float32)])
    assert caught.value.reason == "too_short"
    with pytest.raises(AudioError, match="Clip 2 of 2 contains NaN"):
        codec.encode([np.zeros(400, np.float32), np.full(400, np.nan, np.float32)])
    assert codec.encode([]) == [] and codec.decode([]) == []


@pytest.mark.parametrize(
    ("codes", "reason", "message"),
    [
        (np.zeros((3, 5), np.int16), "wrong_shape", r"the shape \[3, 5\]; the codec mel_rvq takes \[4, frames\]"),
        (np.zeros((4, 0), np.int16), "wrong_shape", r"\[4, 0\]"),
        (np.zeros(4, np.int16), "wrong_shape", r"\[4\]"),
        (np.full((4, 2), 32, np.int16), "wrong_range", "from 32 to 32; those of the codec mel_rvq are 0 to 31"),
        (np.full((4, 2), -1, np.int16), "wrong_range", "from -1"),
    ],
)
def test_wrong_codes(codec, codes, reason, message):
    with pytest.raises(AudioError, match=message) as caught:
        codec.decode([codes])
    assert caught.value.reason == reason


def test_fitted_on_little(clips):
    section = Codec.model_validate({**SMALL, "entries": 256})
    few = section.fit([tone(440, 0.1), tone(880, 0.1)])  # ten frames for 256 entries
    [codes] = few.encode([tone(440, 0.1)])
    assert len(few.decode([codes])[0]) == 1600
    silent = section.fit([np.zeros(4000, np.float32)])
    assert (silent.encode([np.zeros(640, np.float32)])[0] == 0).all()
    assert np.abs(silent.decode([np.zeros((4, 3), np.int16)])[0]).max() < 1e-3
    with pytest.raises(DataError, match="no audio of at least one frame"):
        section.fit([np.zeros(100, np.float32)])


def test_a_large_corpus_is_sampled(clips):
    """Of more frames than `fit_frames`, a part is kept, from all of the corpus."""
    section = Codec.model_validate({**SMALL, "fit_frames": 100, "entries": 8, "codebooks": 1})
    low, high = [tone(200, 2.0)] * 20, [tone(3000, 2.0)] * 20
    codec = section.fit([*low, *high])
    assert not np.array_equal(*(codec.encode([tone(hz)])[0][:, 5:20] for hz in (200, 3000)))
    [decoded] = codec.decode(codec.encode([tone(3000)]))
    assert mel_difference(tone(3000), decoded, 16000).mean() < mel_difference(tone(200), decoded, 16000).mean()


def test_kmeans_finds_clusters():
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    vectors = torch.cat([c + 0.1 * torch.randn(50, 2, generator=generator) for c in centres])
    entries = kmeans(vectors, 4, 10, generator)
    assert torch.cdist(centres, entries).min(1).values.max() < 0.1
    assert torch.equal(nearest(vectors, entries), torch.cdist(vectors, entries).argmin(1))


def test_kmeans_of_few_points_repeats_entries():
    points = torch.tensor([[0.0], [1.0], [5.0]])
    entries = kmeans(points, 8, 5, torch.Generator().manual_seed(0))
    assert set(entries.flatten().tolist()) == {0.0, 1.0, 5.0}


def test_residuals_shrink():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(2000, 6, generator=generator)
    books = residual_kmeans(vectors, 3, 16, 8, generator)
    codes = residual_nearest(vectors, books)
    rest = [(vectors - sum(b[c] for b, c in zip(books[:n], codes[:n]))).square().mean() for n in (1, 2, 3)]
    assert 1.0 > rest[0] > rest[1] > rest[2]


def test_spectra_invert_themselves():
    """Phases aside, nothing is lost: the inverse transform undoes the transform, at the edges too."""
    spectra = Spectra(16000, 80, 160, 640, 1e-6)
    audio = torch.from_numpy(say("one", "en-us").audio)
    audio = audio[: len(audio) // 160 * 160]
    assert torch.allclose(spectra.istft(spectra.stft(audio)), audio, atol=1e-5)
    log_mel = spectra.log_mel(audio)
    powers = spectra.power(log_mel) @ spectra.filters + spectra.floor
    assert (powers.log() - log_mel).abs().mean() < 0.1 and log_mel.shape == (len(audio) // 160, 80)


def test_griffin_lim_converges():
    spectra = Spectra(16000, 80, 160, 640, 1e-6)
    audio = at_peak(say("two three", "en-us").audio)
    audio = torch.from_numpy(audio[: len(audio) // 160 * 160])
    log_mel = spectra.log_mel(audio)
    wrong = [mel_difference(audio.numpy(), spectra.audio(log_mel, n, 0.99).numpy(), 16000).mean() for n in (0, 4, 32)]
    assert wrong[0] > wrong[1] > wrong[2] and wrong[2] < 2.5


def test_mel_difference():
    audio = tone(440, 1.0)
    assert mel_difference(audio, audio, 16000).max() == 0
    assert mel_difference(audio, tone(440, 1.0, 0.25), 16000)[10:90].mean() > 0
    noise = np.random.default_rng(0).normal(size=48000).astype(np.float32)
    assert mel_difference(noise, noise / 10, 48000)[5:95].mean() == pytest.approx(20, abs=0.5)


def test_level():
    assert np.abs(at_peak(tone(440, level=0.01))).max() == pytest.approx(0.9)
    assert not at_peak(np.zeros(10, np.float32)).any()


def test_sections():
    assert isinstance(Codec.model_validate({}), MelRVQ) and Codec.choices()["mel_rvq"].fits
    assert set(Codec.choices()) >= {"mel_rvq", "higgs_audio_v2", "mimi", "dac", "encodec", "xcodec2"}
    with pytest.raises(ConfigError, match="the codec of `from` has its own"):
        load(None, ["from=x", "entries=12"], MelRVQ)
    with pytest.raises(ConfigError, match="at least twice `hop`"):
        load(None, ["window=160"], MelRVQ)


def test_a_folder_that_is_no_codec(codec, tmp_path):
    with pytest.raises(ConfigError, match=r"the folder /nowhere/x does not exist"):
        open_codec("/nowhere/x")
    with pytest.raises(ConfigError, match=r"holds no codec: it has no config.json"):
        open_codec(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="of the kind 'bert', which is none of the codecs dac, encodec"):
        open_codec(str(tmp_path))
    with pytest.raises(ConfigError, match="a codec of the kind 'bert', not mel_rvq"):
        Codec.model_validate({"type": "mel_rvq", "from": str(tmp_path)}).open()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        open_codec(str(tmp_path))
    with pytest.raises(ConfigError, match=r"no published weights.*stentor prepare codec"):
        open_codec("mel_rvq")
    with pytest.raises(ConfigError, match=r"no codec folder melrvq.*did you mean mel_rvq"):
        open_codec("melrvq")


def test_a_codec_of_the_hub(codec, tmp_path, monkeypatch):
    """Of a model that carries its codec, the codec alone is downloaded; of any other, no folder inside it."""
    import huggingface_hub

    asked = []

    def download(name, allow_patterns, ignore_patterns=None, revision=None):
        asked.append((name, tuple(allow_patterns), tuple(ignore_patterns or ()), revision))
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    codec.save(tmp_path / "some/model" / "audio_tokenizer")
    codec.save(tmp_path / "some/codec")
    assert open_codec("some/model").vocabulary == 32
    assert asked == [("some/model", ("audio_tokenizer/*",), (), None)]
    section = Codec.model_validate({"type": "mel_rvq", "from": "some/codec", "revision": "v2"})
    assert section.open().vocabulary == 32
    assert asked[2] == ("some/codec", ("*.json", "*.safetensors"), ("*/*",), "v2")

    def away(*_, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", away)
    with pytest.raises(ConfigError, match="the model some/codec could not be reached on the Hub"):
        open_codec("some/codec")


@pytest.mark.parametrize("damage", ["cut", "missing", "other"])
def test_a_damaged_folder(codec, tmp_path, damage):
    codec.save(tmp_path)
    weights = tmp_path / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "missing":
        weights.unlink()
    else:
        text = (tmp_path / "config.json").read_text()
        (tmp_path / "config.json").write_text(text.replace('"codebooks": 4', '"codebooks": 5'))
    with pytest.raises(ConfigError, match=f"The codec in {tmp_path} is damaged or incomplete"):
        open_codec(str(tmp_path))
