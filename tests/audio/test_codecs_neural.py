"""The codecs of transformers, built small: what they answer is what transformers answers, whatever stands beside."""

import json
import pickle

import numpy as np
import pytest
import soxr
import torch
from tiny_codecs import KINDS, build

from stentor.errors import ConfigError
from stentor.models.codecs.base import Codec, open_codec
from stentor.models.codecs.resample import resample
from stentor.models.codecs.transformers_codecs import semantic_features

EXPECTED = {  # sampling rate, hop, codebooks, vocabulary
    "higgs_audio_v2": (24000, 960, 8, 1024),
    "mimi": (24000, 32, 8, 16),  # 8 of 12
    "dac": (24000, 10, 3, 16),
    "encodec": (24000, 20, 2, 16),
    "xcodec2": (16000, 320, 1, 65536),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: build(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def opened(folders, kind, **settings):
    if kind == "encodec":
        settings.setdefault("bandwidth", 9.6)
    return Codec.model_validate({"type": kind, "from": str(folders[kind]), **settings}).open()


def noises(codec, *lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(0.1 * rng.normal(size=n)).astype(np.float32) for n in lengths]


@pytest.mark.parametrize("kind", KINDS)
def test_interface(folders, kind, tmp_path):
    codec = opened(folders, kind)
    assert (codec.sample_rate, codec.hop, codec.codebooks, codec.vocabulary) == EXPECTED[kind] and codec.type == kind
    assert codec.dtype == (np.int32 if kind == "xcodec2" else np.int16)
    # One frame, a little more than one, and lengths that are no multiple of anything.
    clips = noises(codec, codec.hop, codec.hop + 1, 5003, 8000)
    codes = codec.encode(clips)
    for clip, clip_codes in zip(clips, codes):
        assert clip_codes.dtype == codec.dtype and clip_codes.shape == (codec.codebooks, codec.frames(len(clip)))
        assert np.array_equal(codec.encode([clip])[0], clip_codes)
    assert len(np.unique(codes[-1])) > 4 and codes[-1].max() < codec.vocabulary
    decoded = codec.decode(codes)
    for wave, clip_codes in zip(decoded, codes):
        assert wave.dtype == np.float32 and wave.shape == (clip_codes.shape[1] * codec.hop,)
        assert np.array_equal(codec.decode([clip_codes])[0], wave)
    # Saved with what it uses of the model, and with the model's own files as they were.
    codec.save(tmp_path / "copy")
    again = open_codec(str(tmp_path / "copy"))
    assert again.type == kind and again.codebooks == codec.codebooks
    assert np.array_equal(again.encode(clips)[-1], codes[-1])
    for file in folders[kind].iterdir():
        assert (tmp_path / "copy" / file.name).read_bytes() == file.read_bytes()
    spawned = pickle.loads(pickle.dumps(codec))
    assert np.array_equal(spawned.decode(codes[:1])[0], decoded[0])


@pytest.mark.parametrize("more", [0, 1, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_transformers(folders, kind, more):
    """Codes and audio of a clip are what the model itself says, of one that ends within a frame too: Mimi and EnCodec
    fill it up themselves, for the others transformers' feature extractors do, with silence."""
    codec = opened(folders, kind)
    [clip] = noises(codec, 8 * codec.hop + more)
    [encoded] = codec.encode([clip])
    if kind not in ("mimi", "encodec"):
        clip = np.pad(clip, (0, -len(clip) % codec.hop))
    model = codec.section.model_class().from_pretrained(folders[kind])
    values = torch.from_numpy(clip)[None, None]
    more = {"mimi": {"num_quantizers": 8}, "encodec": {"bandwidth": 9.6}}.get(kind, {})
    if kind == "xcodec2":
        more = {"input_features": semantic_features(torch.from_numpy(clip), codec.geometry)}
    with torch.no_grad():
        answer = model.encode(values, **more)
        scales = {"audio_scales": answer.audio_scales} if kind == "encodec" else {}
        wave = model.decode(audio_codes=answer.audio_codes, **scales).audio_values
    codes = answer.audio_codes[0] if kind == "encodec" else answer.audio_codes
    assert np.array_equal(encoded, codes[0].numpy())
    wave = wave.flatten().numpy()
    decoded = codec.decode([encoded])[0][: len(wave)]
    assert len(wave) > 7 * codec.hop and np.allclose(decoded, wave[: len(decoded)], atol=1e-6)


def test_fewer_codebooks_are_the_first_ones(folders):
    for kind, many in (("mimi", 12), ("dac", 3), ("higgs_audio_v2", 8)):
        all_of_them, two = opened(folders, kind, codebooks=many), opened(folders, kind, codebooks=2)
        clips = noises(two, 3 * two.hop)
        assert np.array_equal(all_of_them.encode(clips)[0][:2], two.encode(clips)[0])
        assert len(two.decode(two.encode(clips))[0]) == 3 * two.hop
    low, high = opened(folders, "encodec", bandwidth=4.8), opened(folders, "encodec", bandwidth=19.2)
    assert (low.codebooks, high.codebooks) == (1, 4)
    assert np.array_equal(low.encode(clips)[0], high.encode(clips)[0][:1])


@pytest.mark.filterwarnings("ignore:Setting snip_edges")
def test_xcodec2_hears_what_kaldi_computes(folders):
    """Against the reference computed with lhotse's Kaldi features, window by window."""
    from lhotse.features.kaldi.layers import Wav2LogFilterBank

    codec = opened(folders, "xcodec2")
    clip = torch.from_numpy(noises(codec, 3200)[0])
    padded = torch.nn.functional.pad(clip, (160, 160)) * 32768
    fbank = Wav2LogFilterBank(
        sampling_rate=16000,
        num_filters=80,
        low_freq=20.0,
        high_freq=8000.0,
        dither=0.0,
        snip_edges=True,
        use_energy=False,
    )
    bins = fbank(padded[None])[0]
    bins = (bins - bins.mean(0)) / (bins.var(0, unbiased=True) + 1e-7).sqrt()
    assert torch.allclose(semantic_features(clip, codec.geometry)[0], bins.reshape(10, 160), atol=2e-3)


def test_refusals(folders, tmp_path):
    with pytest.raises(ConfigError, match=r"codec\.codebooks: 20 requested, but the mimi codec has 12"):
        opened(folders, "mimi", codebooks=20)
    with pytest.raises(ConfigError, match=r"no 6 kbit/s; it has 4\.8, 9\.6, 19\.2"):
        opened(folders, "encodec", bandwidth=6.0)
    with pytest.raises(ConfigError, match="a codec of the kind 'dac', not mimi"):
        Codec.model_validate({"type": "mimi", "from": str(folders["dac"])}).open()
    with pytest.raises(ConfigError, match="the folder /nowhere/mimi does not exist"):
        Codec.model_validate({"type": "mimi", "from": "/nowhere/mimi"}).open()
    stereo = build("encodec", tmp_path / "stereo", audio_channels=2)
    with pytest.raises(ConfigError, match="This EnCodec is stereo"):
        Codec.model_validate({"type": "encodec", "from": str(stereo)}).open()


def test_a_damaged_model(folders, tmp_path):
    folder = tmp_path / "run-401"  # no answer of the Hub's
    opened(folders, "dac").save(folder)
    (folder / "codec.json").write_text("{")
    with pytest.raises(ConfigError, match=r"codec\.json is damaged"):
        open_codec(str(folder))
    (folder / "codec.json").unlink()
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "n_codebooks": 4}))
    with pytest.raises(ConfigError, match=r"do not fit its config\.json: \d+ are missing .* such as quantizer"):
        open_codec(str(folder))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(ConfigError, match="damaged or cut short"):
        open_codec(str(folder))
    weights.unlink()
    with pytest.raises(ConfigError, match="has no weights in safetensors files"):
        open_codec(str(folder))


@pytest.mark.parametrize(("rate", "to"), [(24000, 16000), (16000, 24000), (44100, 16000), (16000, 16000)])
def test_resample(rate, to):
    """Of sounds well below both Nyquist frequencies, like soxr; and of the length that torchaudio gives."""
    time = np.arange(rate // 2) / rate
    wave = sum(np.sin(2 * np.pi * hz * time + hz) for hz in (110, 900, 3100)).astype(np.float32) * 0.2
    resampled = resample(torch.from_numpy(wave)[None], rate, to)[0].numpy()
    assert len(resampled) == -(-len(wave) * to // rate)
    expected = soxr.resample(wave, rate, to, quality="VHQ")
    middle = slice(to // 20, to // 2 - to // 20)
    assert np.abs(resampled[middle] - expected[middle]).max() < 2e-3


def test_resample_as_defined():
    """Against the sum that defines it, sample by sample."""
    rng = np.random.default_rng(0)
    wave = rng.normal(size=60)
    resampled = resample(torch.from_numpy(wave).float(), 24000, 16000).numpy()
    cutoff = 0.99 * 2 / 3  # relative to the input's sampling rate, twice
    for m in range(len(resampled)):
        distance = (np.arange(60) - m * 1.5) * cutoff
        window = np.where(np.abs(distance) < 6, np.cos(np.pi * distance / 12) ** 2, 0)
        assert resampled[m] == pytest.approx(float((wave * np.sinc(distance) * window).sum() * cutoff), abs=1e-5)
