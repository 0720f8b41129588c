"""CTC models of transformers: what they are asked for, whatever their tokenizer."""

import json

import numpy as np
import pytest
import torch

from stentor.data.word_units import units
from stentor.errors import ConfigError
from stentor.inference.align.ctc import TransformersCTC, spelling
from stentor.losses.base import WILDCARD
from tiny_configs import WAVE

CPU = torch.device("cpu")


def saved(folder, size):
    """A tiny Wav2Vec2ForCTC of random weights with its feature extractor; blank is 0."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    torch.manual_seed(0)
    Wav2Vec2ForCTC(Wav2Vec2Config(vocab_size=size, pad_token_id=0, **WAVE)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    from transformers import Wav2Vec2CTCTokenizer

    folder = tmp_path_factory.mktemp("characters")
    vocabulary = ["<pad>", "<unk>", "|", *"ENOTW"]
    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(vocabulary)}))
    Wav2Vec2CTCTokenizer(folder / "vocab.json", pad_token="<pad>", unk_token="<unk>").save_pretrained(folder)
    return TransformersCTC(saved(folder, len(vocabulary)), CPU)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("pieces")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=40, special_tokens=["<pad>", "<unk>"], show_progress=False)
    tokenizer.train_from_iterator(["one two three four"] * 50, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>").save_pretrained(folder)
    return TransformersCTC(saved(folder, tokenizer.get_vocab_size()), CPU)


def test_frames_are_20_ms_apart(characters):
    assert (characters.rate, characters.hop, characters.blank) == (16000, 320, 0)


def test_characters_in_the_tokenizers_own_case(characters):
    text = "one Two, é!"
    labels, owner = spelling(characters, text, units(text, None))
    assert owner == [0, 0, 0, -1, 1, 1, 1, -1, 2]
    assert labels == [5, 4, 3, 2, 6, 7, 5, 2, 3], "é is E, the comma is left out"


def test_pieces_belong_to_the_words_that_they_begin_in(pieces):
    text = "one two zz four"
    labels, owner = spelling(pieces, text, units(text, None))
    names = pieces.tokenizer.convert_ids_to_tokens([label for label in labels if label != WILDCARD])
    assert "".join(names).replace("▁", "") == "onetwofour"
    words = [word for word in owner if word >= 0]
    assert set(words) == {0, 1, 2, 3} and words == sorted(words)
    assert WILDCARD in [label for label, word in zip(labels, owner, strict=True) if word == 2]


def test_a_clip_gives_the_same_alone_and_beside_others(characters):
    rng = np.random.default_rng(0)
    clips = [rng.normal(size=n).astype(np.float32) for n in (16000, 100, 40000)]
    for one, log_probs in zip(clips, characters.log_probs(clips), strict=True):
        assert torch.equal(characters.log_probs([one])[0], log_probs)
        assert log_probs.exp().sum(-1).numpy() == pytest.approx(1.0, abs=1e-4)


def test_a_folder_that_is_no_model_is_told_plainly(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a CTC model that transformers can load"):
        TransformersCTC(tmp_path, CPU)
