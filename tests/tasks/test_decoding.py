"""Words and their tokens for several kinds of tokenizer, and the signs of made-up answers."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stentor.tasks.decode_checks import Checks, compression_ratio, token_spans, word_confidences, word_tokens
from stentor.text.written_words import written_words


def pieces_decoder(pieces, strip=False):
    """Decode by joining pieces, as SentencePiece and character tokenizers do, perhaps without outer white space."""

    def decode(ids):
        text = "".join(pieces[i] for i in ids)
        return text.strip() if strip else text

    return decode


def bytes_decode(ids):
    """Byte-level BPE: ids are bytes; parts of a character become the replacement character."""
    return bytes(ids).decode("utf-8", errors="replace")


def test_words_of_pieces():
    decode = pieces_decoder(["hel", "lo", " wor", "ld", "!"])
    assert word_tokens(range(5), decode) == [("hello", [0, 1]), ("world!", [2, 3, 4])]


def test_white_space_tokens_belong_to_the_next_word():
    decode = pieces_decoder(list("ab c"), strip=True)
    assert word_tokens(range(4), decode) == [("ab", [0, 1]), ("c", [2, 3])]


def test_a_token_across_two_words_belongs_to_both():
    decode = pieces_decoder(["of", " the ca", "t"])
    assert word_tokens(range(3), decode) == [("of", [0]), ("the", [1]), ("cat", [1, 2])]


def test_leading_and_trailing_space_and_nothing():
    decode = pieces_decoder([" ", "a", " ", " "])
    assert word_tokens(range(4), decode) == [("a", [0, 1])]
    assert word_tokens([], decode) == []
    assert word_tokens([0, 2], decode) == []


def test_parts_of_a_character_go_to_the_word_that_they_spell():
    ids = list("né à".encode())
    text, spans = token_spans(ids, bytes_decode)
    assert text == "né à"
    assert spans == [(0, 1), (1, 1), (1, 2), (2, 3), (3, 3), (3, 4)]
    assert word_tokens(ids, bytes_decode) == [("né", [0, 1, 2]), ("à", [3, 4, 5])]


def test_a_decoder_that_cleans_up_spaces():
    # Like decoders that write "don 't" as "don't": the text of a prefix is not a prefix of the text.
    def decode(ids):
        return " ".join(["i", "don", "'t", "know"][i] for i in ids).replace(" '", "'")

    assert word_tokens(range(4), decode) == [("i", [0]), ("don't", [1, 2]), ("know", [3])]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "b ", " c", " ", "d e", "é", "日本", " f g "]), max_size=12), st.booleans())
def test_every_word_has_tokens_in_order_that_spell_it(pieces, strip):
    decode = pieces_decoder(pieces, strip)
    ids = list(range(len(pieces)))
    words = word_tokens(ids, decode)
    assert [word for word, _ in words] == written_words(decode(ids))
    last = 0
    for word, positions in words:
        assert positions == list(range(positions[0], positions[-1] + 1)) and positions[0] >= last
        assert word in "".join(pieces[i] for i in positions)
        last = positions[-1]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab é日 \U0001f600", max_size=12))
def test_byte_tokens_spell_their_words(text):
    ids = list(text.encode())
    for word, positions in word_tokens(ids, bytes_decode):
        assert bytes(ids[positions[0] : positions[-1] + 1]).decode().strip() == word


def test_confidence_is_that_of_the_least_certain_token():
    decode = pieces_decoder(["hel", "lo", " you"])
    words = word_confidences(range(3), [math.log(0.9), math.log(0.5), math.log(0.8)], decode)
    assert words == [{"word": "hello", "confidence": 0.5}, {"word": "you", "confidence": 0.8}]


def output(text, log_prob=-0.1):
    return {"text": text, "log_prob": log_prob, "compression_ratio": compression_ratio(text)}


def test_repetition_shows():
    checks = Checks()
    assert compression_ratio("") == 0
    assert checks.failed(output("la " * 60), 30.0) == ["compression_ratio"]
    plain = "mister quilter is the apostle of the middle classes and we are glad to welcome his gospel"
    assert compression_ratio(plain) < 1.6
    assert checks.failed(output(plain), 6.0) == []


def test_doubt_and_rate_show():
    checks = Checks(words_per_second=(0.5, 5.0))
    assert checks.failed(output("yes", -1.5), 1.0) == ["mean_log_prob"]
    assert checks.failed(output("one two three four five six"), 1.0) == ["words_per_second"]
    assert checks.failed(output("one"), 10.0) == ["words_per_second"]
    off = Checks(words_per_second=None, mean_log_prob=None, compression_ratio=None)
    assert off.failed(output("la " * 60, -9.0), 0.1) == []


@pytest.mark.parametrize(
    "wrong", [{"temperatures": []}, {"temperatures": [0.4, 0.2]}, {"words_per_second": (5, 1)}, {"unknown": 1}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        Checks(**wrong)
