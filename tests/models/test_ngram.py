"""N-grams beside a recogniser: their probabilities by the formula, and their say in each kind of search."""

import itertools
import math
from collections import Counter

import pytest
import torch

from stentor.errors import ConfigError, DataError
from stentor.models.decoding.bias import START
from stentor.models.decoding.ctc import decode
from stentor.models.decoding.ngram import BEGIN, END, SHIFT, LanguageModel, NGram, language_model
from stentor.models.decoding.search import search

TEXTS = [(1, 2, 3), (1, 2, 4), (1, 2, 3, 1, 2), (3,), (3, 3, 3), (2, 1)]
CLASSES = 5


def witten_bell(texts, order):
    """Probability of a token (shifted, or `END`) after a text so far, by the recursion of the paper."""
    counts = Counter()
    for text in texts:
        line = [BEGIN, *(token + SHIFT for token in text), END]
        counts.update(
            (tuple(line[end - n : end]), line[end]) for end in range(1, len(line)) for n in range(min(order, end + 1))
        )
    outcomes = max(token for text in texts for token in text) + 1 + 2  # tokens, the end, and any other one

    def probability(context, token):
        shorter = probability(context[1:], token) if context else 1 / outcomes
        followers = {t: n for (c, t), n in counts.items() if c == context}
        total = sum(followers.values()) + len(followers)
        return (followers.get(token, 0) + len(followers) * shorter) / total if total else shorter

    return lambda text, token: probability(tuple([BEGIN, *(t + SHIFT for t in text)][-(order - 1) :]), token)


@pytest.mark.parametrize("order", [2, 3, 4, 9])
def test_probabilities_are_those_of_the_paper(order):
    model, expected = NGram(TEXTS, order), witten_bell(TEXTS, order)
    for length in range(5):
        for text in itertools.product(range(6), repeat=length):
            node = START
            for token in text:
                node = model.advance(node, token)
            probs = model.probs(node)
            assert probs[END:].sum() == pytest.approx(1)
            wanted = [expected(text, token) for token in (*range(END, SHIFT + CLASSES), SHIFT + 99)]
            assert probs[END:] == pytest.approx(wanted), text


def test_what_is_held_out_says_how_surprising_a_token_is():
    texts = TEXTS * 10
    model = LanguageModel(texts, 1.0, end=None)
    counted, held_out = [t for i, t in enumerate(texts) if i % 20], texts[::20]
    expected = witten_bell(counted, 8)
    log_probs = [math.log(expected(text[:i], text[i] + SHIFT)) for text in held_out for i in range(len(text))]
    assert model.average == pytest.approx(sum(log_probs) / len(log_probs))
    row = model.rows([START], torch.zeros(1, 7))[0]
    assert float(row[1]) == pytest.approx(math.log(expected((), 1 + SHIFT)) - model.average)
    assert float(row[6]) == pytest.approx(math.log(expected((), 99)) - model.average), "a token of no text"


def score(model, ids, end):
    """What the language model adds to an answer, its end included."""
    like, state, total = torch.zeros(1, CLASSES), START, 0.0
    for token in ids:
        total += float(model.rows([state], like)[0, token])
        state = model.advance(state, token)
    return total + (float(model.rows([state], like)[0, end]) if end is not None else -model.withdrawn(state))


def test_a_ctc_search_finds_the_best_of_all_texts():
    torch.manual_seed(0)
    model = LanguageModel(TEXTS, 0.7, end=None)
    log_probs = torch.randn(2, 4, CLASSES).log_softmax(-1)
    found = decode(log_probs, torch.tensor([4, 3]), blank=0, beams=200, bias=model)
    changed = 0
    for item, frames, (ids, values, *_) in zip(log_probs, (4, 3), found):
        totals = {}
        for path in itertools.product(range(CLASSES), repeat=frames):
            text = tuple(c for c, _ in itertools.groupby(path) if c)
            value = sum(float(item[t, c]) for t, c in enumerate(path))
            totals[text] = math.log(math.exp(totals.get(text, -math.inf)) + math.exp(value))
        assert tuple(ids) == max(totals, key=lambda text: totals[text] + score(model, text, None))
        assert all(value in item[:frames, c].tolist() for c, value in zip(ids, values)), "its own log-probabilities"
        changed += tuple(ids) != max(totals, key=totals.__getitem__)
    assert changed, "the texts say nothing here: choose another seed"


class Scripted:
    """A decoder whose log-probabilities depend on how much was written."""

    def __init__(self, log_probs):
        self.all, self.at, self.log_probs = log_probs, 0, log_probs[:1].clone()

    def step(self, tokens):
        self.at += 1
        self.log_probs = self.all[self.at].expand(len(tokens), -1).clone()

    def select(self, rows):
        self.log_probs = self.log_probs[rows]


def test_a_token_by_token_search_ends_where_texts_end():
    torch.manual_seed(1)
    model = LanguageModel(TEXTS, 1.0, end=0)
    log_probs = torch.randn(4, CLASSES).log_softmax(-1)
    log_probs[3] = torch.tensor([0.0] + [-torch.inf] * (CLASSES - 1))

    def mean(text):
        steps = [float(log_probs[i, token]) for i, token in enumerate((*text, 0))]
        return (sum(steps) + score(model, text, 0)) / (len(text) + 1)

    texts = [t for n in range(4) for t in itertools.product(range(1, CLASSES), repeat=n)]
    (ids, values, *_), *_ = search(Scripted(log_probs), [3], {0}, beams=100, bias=model)
    assert tuple(ids) == max(texts, key=mean)
    assert values == pytest.approx([float(log_probs[i, token]) for i, token in enumerate(ids)])


class Letters:
    """A processor of capitals."""

    eos_id = None

    def ids(self, text):
        return [" ABC".index(c) + 1 for c in text if c in " ABC"]

    def decode(self, ids):
        return "".join(" ABC"[i - 1] for i in ids)


def test_lines_that_cannot_be_written_are_left_out(tmp_path, caplog):
    """In any order; punctuation is what the model may leave out."""
    plain, mixed = tmp_path / "plain.txt", tmp_path / "mixed.txt"
    plain.write_text("abc\nab c\n")
    mixed.write_text("12 §§\nAbc.\nжук a\n-\nab, c!\n")
    models = [language_model(Letters(), path, 0.5) for path in (plain, mixed)]
    assert models[0].ngram.probs(START) == pytest.approx(models[1].ngram.probs(START))
    assert models[0].ngram.counts.sum() == models[1].ngram.counts.sum()
    assert "mixed.txt: 2 of 4 lines have letters that the model cannot write" in caplog.text


def test_a_file_is_counted_once_for_all_weights_and_anew_when_it_changes(tmp_path):
    path, letters = tmp_path / "texts.txt", Letters()
    path.write_text("abc\n")
    one, two = (language_model(letters, path, weight) for weight in (0.5, 1.0))
    assert one.ngram is two.ngram
    like = torch.zeros(1, CLASSES)
    assert torch.equal(2 * one.rows([START], like), two.rows([START], like))
    assert 2 * one.withdrawn(START) == pytest.approx(two.withdrawn(START))
    path.write_text("cab c\n")
    assert language_model(letters, path, 0.5).ngram.probs(START)[4 + SHIFT] > 0.5


def test_texts_come_from_a_file_in_the_letters_of_the_model(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("abc\n\n  ab c\n")
    model = language_model(Letters(), path, 0.5)
    assert model.ngram.probs(START)[2 + SHIFT] > 0.5, "both begin with an A"
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match=r"empty\.txt holds no text to learn a language model from"):
        language_model(Letters(), tmp_path / "empty.txt", 0.5)
    (tmp_path / "other.txt").write_text("жук\n")
    with pytest.raises(ConfigError, match=r"language model, .*other\.txt: The model has no letters for 'жук'"):
        language_model(Letters(), tmp_path / "other.txt", 0.5)
    with pytest.raises(DataError, match=r"missing\.txt"):
        language_model(Letters(), tmp_path / "missing.txt", 0.5)
