"""Phrases that are favoured while decoding: bonuses and what is taken back, in each kind of search."""

import itertools
import math

import pytest
import torch

from stentor.errors import ConfigError
from stentor.models.decoding import transducer
from stentor.models.decoding.bias import START, biasing
from stentor.models.decoding.ctc import BIASED, decode, merge
from stentor.models.decoding.search import search

LETTERS = "_ abcdefghijklmnopqrstuvwxyz中国"
BLANK = END = 0


class Letters:
    """A processor of letters: class 0 is blank or end."""

    def ids(self, text):
        return [LETTERS.index(c) for c in text if c in LETTERS]

    def decode(self, ids):
        return "".join(LETTERS[i] for i in ids)


def phrases(*texts, strength=1.0):
    return biasing(Letters(), texts, strength)


def earned(bias, text, closed=True):
    """What a hypothesis has earned after a text."""
    state, total, like = START, 0.0, torch.zeros(1, len(LETTERS))
    for token in Letters().ids(text):
        total += float(bias.rows([state], like)[0, token])
        state = bias.advance(state, token)
    return total - (bias.withdrawn(state) if closed else 0.0)


@pytest.mark.parametrize(
    "text, bonus",
    [
        ("bob", 3),
        ("a bob", 3),
        ("a bob a", 3),
        ("bob bob", 6),
        ("bobby", 0),  # a word that goes on is another word
        ("a bobby is", 0),
        ("kebob", 0),  # and so is one that begins before
        ("bo", 0),
        ("bo bob", 3),
        ("new york", 7),
        ("a new yorker", 0),
        ("new bob", 3),
        ("new yo bob", 3),
        ("", 0),
    ],
)
def test_only_listed_words_earn(text, bonus):
    assert earned(phrases("bob", "new york"), text) == pytest.approx(bonus)


def test_a_phrase_within_a_phrase_that_breaks_off_stays():
    bias = phrases("bob", "dear bob smith", "bob smile")
    assert earned(bias, "dear bob") == 3
    assert earned(bias, "dear bob smart") == 3
    assert earned(bias, "dear bob smile") == pytest.approx(3 + 5)
    assert earned(bias, "dear bob smith") == pytest.approx(12)
    assert earned(bias, "dear bob smith", closed=False) == pytest.approx(12)
    assert earned(bias, "dear bo", closed=False) == pytest.approx(6)


def test_scripts_without_spaces_need_no_borders():
    bias = phrases("中国")
    assert earned(bias, "国中国中") == pytest.approx(2)


def test_what_is_taken_back_was_given():
    """Whatever is written, a hypothesis has in the end what its listed words earned, and nothing else."""
    listed = ("a", "ab", "ba b", "b a b")
    bias = phrases(*listed)
    for length in range(1, 6):
        for text in map("".join, itertools.product("ab ", repeat=length)):
            total = earned(bias, text)
            assert total >= -1e-9, text
            assert (total > 0) == any(f" {phrase} " in f" {text} " for phrase in listed), text


def test_phrases_are_spelled_in_the_letters_of_the_model():
    assert earned(phrases("Bob"), "bob") == 3
    with pytest.raises(ConfigError, match="no letters for 'Bób'"):
        phrases("Bób")


class Scripted:
    """A decoder whose log-probabilities depend on the row's item and on how much was written."""

    def __init__(self, log_probs):
        self.table = log_probs  # [B, T, V]
        self.items, self.at = torch.arange(len(log_probs)), 0

    @property
    def log_probs(self):
        return self.table[self.items, min(self.at, self.table.shape[1] - 1)]

    def step(self, tokens):
        self.at += 1

    def select(self, rows):
        self.items = self.items[rows]


def spelled(text, rivals, sure=0.6, length=None):
    """Log-probabilities [T, V] under which letters of a text have probability `sure` and those of a rival 0.9 of the
    rest."""
    text, rivals = (t + "_" * ((length or len(text) + 1) - len(t)) for t in (text, rivals))
    probs = torch.full((len(text), len(LETTERS)), 0.1 * (1 - sure) / len(LETTERS))
    for row, a, b in zip(probs, text, rivals):
        row[LETTERS.index(b)] += 0.9 * (1 - sure)
        row[LETTERS.index(a)] += sure
    return (probs / probs.sum(-1, keepdim=True)).log()


@pytest.mark.parametrize("beams", [1, 4])
def test_search_writes_the_listed_word(beams):
    table = torch.stack(
        [spelled("a bab is", "a bob is"), spelled("a cab is", "a car is"), spelled("bab", "bob", length=9)]
    )
    limits = [12] * len(table)

    def texts(bias, rows=slice(None)):
        part = table[rows]
        results = search(Scripted(part), limits[: len(part)], {END}, beams=beams, bias=bias)
        return [Letters().decode(r.ids) for r in results], [r.log_probs for r in results]

    plain, log_probs = texts(None)
    assert plain == ["a bab is", "a cab is", "bab"]
    favoured, favoured_log_probs = texts(phrases("bob"))
    assert favoured == ["a bob is", "a cab is", "bob"]
    assert sum(favoured_log_probs[0]) < sum(log_probs[0])  # they are the model's
    assert favoured_log_probs[1] == pytest.approx(log_probs[1])
    for i in range(len(table)):
        one, one_log_probs = texts(phrases("bob"), slice(i, i + 1))
        assert one == favoured[i : i + 1] and one_log_probs[0] == pytest.approx(favoured_log_probs[i])


def test_beams_take_back_what_greedy_decoding_cannot():
    table = spelled("a bobby", "a bebby", sure=0.3)[None]
    assert Letters().decode(search(Scripted(table), [12], {END}, beams=4, bias=phrases("bob"))[0][0]) == "a bebby"


def test_beams_compare_means_over_the_tokens():
    table = torch.full((1, 2, len(LETTERS)), 1e-6)
    table[0, 0, [END, LETTERS.index("a")]] = torch.tensor([0.55, 0.45])  # the empty text is likelier than "a"
    table[0, 1, END] = 1.0
    assert Letters().decode(search(Scripted(table.log()), [12], {END}, beams=4)[0][0]) == "a"


def by_paths(log_probs, bias):
    """The best text by all paths of a CTC head, with the bonus of its words."""
    totals = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        ids = tuple(c for c, _ in itertools.groupby(path) if c != BLANK)
        score = sum(float(log_probs[t, c]) for t, c in enumerate(path))
        totals.setdefault(ids, []).append(score)
    scores = {}
    for ids, values in totals.items():
        bonus = 0.0 if bias is None else earned(bias, Letters().decode(ids))
        scores[ids] = float(torch.tensor(values, dtype=torch.float64).logsumexp(0)) + bonus
    return max(scores, key=scores.get)


@pytest.mark.parametrize("biased", [False, True])
def test_prefix_beams_find_the_best_text_of_all_paths(biased):
    torch.manual_seed(0)
    for _ in range(10):
        log_probs = torch.randn(1, 4, 4).mul(1.5).log_softmax(-1)  # blank, space, a, b
        bias = phrases("ab", "ba", strength=0.7) if biased else None
        ids, values, *_ = decode(log_probs, torch.tensor([4]), BLANK, beams=400, bias=bias)[0]
        assert tuple(ids) == by_paths(log_probs[0], bias)
        assert len(values) == len(ids)


def test_ctc_writes_the_listed_word_and_a_batch_is_its_items():
    table = torch.stack([spelled("a_bab_is", "a_bob_is"), spelled("bab", "bob", length=9)])
    frames = torch.tensor([9, 4])

    def texts(bias, table=table, frames=frames):
        return [Letters().decode(ids) for ids, *_ in decode(table, frames, BLANK, 1, bias)]

    assert texts(None) == ["ababis", "bab"]
    assert texts(phrases("bob")) == ["ababis", "bob"]  # within a word nothing is favoured
    alone = [texts(phrases("bob"), table[i : i + 1], frames[i : i + 1])[0] for i in range(2)]
    assert alone == texts(phrases("bob")) and BIASED > 1


class Echo:
    """A transducer whose logits are its frames; blank and tokens go on by one."""

    blank, durations, max_symbols = BLANK, [1], 1

    def joint(self, encoder, predictor):
        return torch.nn.functional.pad(encoder + predictor, (0, 1))

    def predict(self, tokens, state):
        return torch.zeros(*tokens.shape, len(LETTERS)), (torch.zeros(1, len(tokens), 1),)


def test_transducers_write_the_listed_word_and_a_batch_is_its_items():
    table = torch.stack(
        [spelled("a bab_is", "a bob_is"), spelled("bab", "bob", length=9), spelled("a cab is", "a car is")]
    )
    frames = torch.tensor([9, 4, 9])

    def texts(bias, rows=slice(None)):
        states, counts, limits = table[rows], frames[rows], [20] * len(frames[rows])
        paths = [answers[0] for answers in transducer.search(Echo(), states, counts, limits, 4, bias)]
        return [Letters().decode(path.ids) for path in paths]

    assert texts(None) == ["a babis", "bab", "a cab is"]
    bias = phrases("bob", "car", strength=1.5)
    assert texts(bias)[1:] == ["bob", "a car is"]
    assert texts(bias) == [texts(bias, slice(i, i + 1))[0] for i in range(3)]


def test_ctc_remembers_the_surest_frame_of_a_class_over_a_prefix_that_writes_it_anew():
    log_probs = torch.tensor([[[0.55, 0.45], [0.7, 0.3]]]).log()  # at the second frame nothing still leads over `a`
    assert decode(log_probs, torch.tensor([2]), BLANK, beams=4)[0][:2] == ([1], [pytest.approx(math.log(0.45))])


def test_a_phrase_may_have_its_own_strength():
    bias = phrases("bob", "bobby\t2", "car\t0.5")
    assert [earned(bias, text) for text in ("bob", "bobby", "car")] == [6, 10, 1.5]  # a shared beginning earns the most


def test_a_list_of_no_words_favours_nothing():
    assert not phrases("", " ").rows([START], torch.zeros(1, len(LETTERS))).any()


@pytest.mark.parametrize("seed", range(5))
def test_beams_say_of_a_class_what_the_greedy_path_says(seed):
    torch.manual_seed(seed)
    log_probs = (5 * torch.randn(1, 30, 5)).log_softmax(-1)
    greedy = decode(log_probs, torch.tensor([30]), BLANK)[0]
    values, path = log_probs[0].max(-1)
    (found,) = decode(log_probs, torch.tensor([30]), BLANK, beams=200, num_answers=200)
    assert greedy == merge(path.tolist(), values.tolist(), BLANK)
    same = [a.log_probs for a in found.alternatives if a.ids == greedy.ids]
    assert same == [pytest.approx(greedy.log_probs)]


def test_what_a_bias_has_written_is_as_likely_as_the_model_says():
    # Of "b?b" the model hears "e" at 0.6 and "o" at 0.3: it is written for its bonus.
    table = torch.full((1, 7, len(LETTERS)), 1e-3)
    heard = [{"b": 0.9}, {"o": 0.02}, {"e": 0.6, "o": 0.3, "b": 0.05}, {}, {"b": 0.2}, {"b": 0.8}, {}]
    for frame, sounds in enumerate(heard):
        for letter, share in sounds.items():
            table[0, frame, LETTERS.index(letter)] = share
        table[0, frame, BLANK] = max(1e-3, 0.95 - sum(sounds.values()))
    log_probs = table.log()
    ids, values, *_ = decode(log_probs, torch.tensor([7]), BLANK, bias=phrases("bob"))[0]
    assert Letters().decode(ids) == "bob"
    assert [math.exp(v) for v in values] == pytest.approx([0.9, 0.3, 0.8])
