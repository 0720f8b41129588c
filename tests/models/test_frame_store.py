"""Frames of a frozen encoder that are kept: what is read is what was encoded, and nothing is encoded twice."""

import pytest
import torch
from pydantic import ValidationError

import stentor.models.transformer.ssl as ssl
import tiny_configs
from stentor.errors import ConfigError
from stentor.models.transformer.config import SSL
from stentor.models.transformer.ssl import front_end, geometry_of

WHISPER = {**tiny_configs.WHISPER, "d_model": 16, "encoder_ffn_dim": 16, "max_source_positions": 60, "init_std": 0.02}


def made(folder, seed=0, mix=False, subsample=1, **options):
    torch.manual_seed(seed)
    section = SSL.model_validate({"config": WHISPER, "store": folder, "mix": mix, "subsample": subsample})
    return front_end(section, geometry_of(section), **options)


@pytest.fixture
def encoded(monkeypatch):
    """How many clips each call of the encoder gets."""
    calls, encode = [], ssl.encode_states

    def counted(encoder, shape, audio, lengths, **options):
        calls.append(len(lengths))
        return encode(encoder, shape, audio, lengths, **options)

    monkeypatch.setattr(ssl, "encode_states", counted)
    return calls


def clips():
    audio, lengths = torch.randn(3, 80, 100, generator=torch.Generator().manual_seed(1)), torch.tensor([100, 60, 80])
    for clip, n in zip(audio, lengths):
        clip[:, n:] = 0
    return audio, lengths


def test_what_was_heard_before_is_read(tmp_path, encoded):
    audio, lengths = clips()
    plain, frames = made(None)(audio, lengths)
    stored = made(tmp_path / "frames")
    first, counts = stored(audio[:2], lengths[:2])
    assert counts.tolist() == frames.tolist()[:2] == [50, 30] and first.dtype == torch.float32
    torch.testing.assert_close(first, plain[:2, :50], atol=2e-3, rtol=1e-3)  # half precision
    assert not first[1, 30:].any()
    del encoded[:]
    again, _ = made(tmp_path / "frames")(audio, lengths)  # another process, a batch with one clip more
    assert torch.equal(again[:2], first) and encoded == [1]
    shorter, counts = stored(audio[1:, :, :80], lengths[1:])
    assert torch.equal(shorter, again[1:, :40]) and counts.tolist() == [30, 40] and encoded == [1]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("change", "counts"), [({"seed": 1}, [50, 30, 40]), ({"mix": True}, [50, 30, 40]), ({"subsample": 4}, [13, 8, 10])]
)
def test_another_encoder_or_form_has_frames_of_its_own(change, counts, tmp_path, encoded):
    audio, lengths = clips()
    made(tmp_path)(audio, lengths)
    stored, plain = made(tmp_path, **change), made(None, **change)
    if stored.mix is not None:
        for front in (stored, plain):
            front.mix.data[:] = torch.tensor([0.5, -0.5])
    first, frames = stored(audio, lengths)
    again, _ = stored(audio, lengths)
    assert encoded == [3, 3] and torch.equal(first, again) and frames.tolist() == counts
    torch.testing.assert_close(first, plain(audio, lengths)[0], atol=2e-3, rtol=1e-3)  # half precision
    if stored.mix is not None:
        again.sum().backward()
        assert stored.mix.grad.abs().min() > 0


def test_another_precision_has_frames_of_its_own(tmp_path, encoded):
    audio, lengths = clips()
    made(tmp_path)(audio, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = made(tmp_path)(audio, lengths)
        again, _ = made(tmp_path)(audio, lengths)
    assert encoded == [3, 3] and torch.equal(rough, again)


@pytest.mark.parametrize("length", [0, 60, 400])
def test_a_clip_whose_file_is_damaged_is_encoded_anew(tmp_path, encoded, length):
    audio, lengths = clips()
    first, _ = made(tmp_path)(audio, lengths)
    file = next(tmp_path.rglob("*.npy"))
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    again, _ = made(tmp_path)(audio, lengths)
    assert encoded == [3, 1] and file.read_bytes() == whole
    torch.testing.assert_close(again, first)


def test_what_is_scored_is_encoded_anew(tmp_path, encoded):
    audio, lengths = clips()
    stored = made(tmp_path)
    with torch.no_grad():
        assert torch.equal(stored(audio, lengths)[0], made(None)(audio, lengths)[0])
    assert not list(tmp_path.iterdir())


def test_an_export_keeps_nothing(tmp_path):
    first = made(tmp_path)
    audio, lengths = clips()
    made(tmp_path, saved_config=first.config)(audio, lengths)
    assert not list(tmp_path.iterdir())


def test_what_has_no_frames_to_keep_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="an encoder that is trained change: leave it out"):
        SSL.model_validate({"config": WHISPER, "store": tmp_path, "freeze": False})
    section = SSL.model_validate({"config": {"model_type": "wavlm"}, "store": tmp_path})
    with pytest.raises(ConfigError, match="only frames of Whisper and Parakeet are stored"):
        front_end(section, geometry_of(section))
