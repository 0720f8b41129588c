"""The loss of masked codec tokens: one term for each codebook, each divided by its own global count."""

import pytest
import torch
from torch.nn import functional as F

from stentor.errors import ConfigError
from stentor.losses.base import Loss, expanded
from stentor.losses.codebook import Codebook
from stentor.losses.token import CrossEntropy


def test_one_term_for_each_codebook_with_its_share_of_the_weight():
    terms = expanded({"codes": Codebook(weights=[8, 8, 6, 6, 4, 4, 2, 2], weight=3.0)}, 8)
    assert list(terms) == [f"codes_{c}" for c in range(8)]
    shares = [3 * w / 40 for w in (8, 8, 6, 6, 4, 4, 2, 2)]
    assert [t.weight for t in terms.values()] == pytest.approx(shares)


@pytest.mark.parametrize(
    "codebooks, weights", [(8, [8, 8, 6, 6, 4, 4, 2, 2]), (4, [8, 6, 4, 2]), (1, [1]), (2, [8, 4])]
)
def test_the_usual_weights_fit_any_codec(codebooks, weights):
    fitted = [t.weight for t in Codebook().terms("codes", codebooks).values()]
    assert fitted == pytest.approx([w / sum(weights) for w in weights])
    assert sum(f.weight for f in Codebook().terms("codes", 12).values()) == pytest.approx(1.0)


def test_other_losses_stay_as_they_are():
    text = CrossEntropy()
    assert expanded({"text": text, "codes": Codebook()}, 2).keys() == {"text", "codes_0", "codes_1"}
    assert expanded({"text": text}, None)["text"] is text


def test_weights_that_do_not_fit_the_codec_are_refused_by_their_key():
    with pytest.raises(ConfigError, match=r"losses\.codes\.weights: 8 weights for a codec with 4 codebooks"):
        Codebook(weights=[8, 8, 6, 6, 4, 4, 2, 2]).terms("codes", 4)
    with pytest.raises(ConfigError, match=r"losses\.words: `codebook` scores the tokens of an audio codec"):
        Codebook().terms("words", None)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0]])
def test_weights_must_weigh_something(weights):
    with pytest.raises(ValueError, match="weights must not be negative"):
        Loss.model_validate({"type": "codebook", "weights": weights})


def test_sums_divided_by_global_counts_are_the_published_loss_of_the_whole_batch():
    """Section 1.2 of the notes on one batch; the same from two micro-batches whose counts differ, which a mean of the
    micro-batches' means is not."""
    torch.manual_seed(0)
    C, V, H, cells = 4, 7, 5, 40
    hidden, head = torch.randn(cells, H), torch.randn(C, V, H)
    labels = torch.randint(0, V, (C, cells))
    labels[torch.rand(C, cells) < 0.6] = -100
    w = torch.tensor([8.0, 6, 4, 2]) / 20
    published = sum(w[c] * F.cross_entropy(hidden @ head[c].T, labels[c], ignore_index=-100) for c in range(C))

    terms = Codebook(weights=[8, 6, 4, 2]).terms("codes", C)
    sums, counts = dict.fromkeys(terms, 0.0), dict.fromkeys(terms, 0)
    means = []
    for part in (slice(0, 33), slice(33, cells)):
        micro_batch_loss = 0.0
        for c, (name, loss) in enumerate(terms.items()):
            valid = labels[c, part] != -100
            value = loss.sum(hidden=hidden[part][valid], weight=head[c], targets=labels[c, part][valid])
            sums[name] += value
            counts[name] += int(valid.sum())
            micro_batch_loss += loss.weight * value / max(int(valid.sum()), 1)
        means.append(micro_batch_loss)
    total = sum(loss.weight * sums[name] / counts[name] for name, loss in terms.items())
    torch.testing.assert_close(total, published)
    assert abs(float(sum(means) / 2 - published)) > 1e-3


def test_label_smoothing_is_for_training_alone():
    (term,) = Codebook(label_smoothing=0.1).terms("codes", 1).values()
    assert term.label_smoothing == 0.1 and term.unregularised().label_smoothing == 0.0
    assert term.unregularised().weight == term.weight
