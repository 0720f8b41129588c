import pytest
import torch
from torch import nn

from stentor.engine.ema import EMA, exported_weights, random_buffers, read_weights, trained_tensors
from stentor.engine.sharding import own_shards
from stentor.engine.tensor_files import MeanTensors, StoredTensors, save_shards
from stentor.models.base import RandomFeatures


class Small(nn.Module):
    """A trained and a frozen weight, a persistent buffer of numbers, one of counts, and one that is not saved."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.frozen = nn.Parameter(torch.tensor([5.0]), requires_grad=False)
        self.register_buffer("running", torch.tensor([0.0]))
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("scratch", torch.tensor([0.0]), persistent=False)


def test_trained_is_what_training_changes():
    assert set(trained_tensors(Small())) == {"weight", "running", "seen"}


def test_average_by_hand():
    """The decay warms up: (1 + step) / (10 + step), 0.1 and 2/11 here, up to the one that was set."""
    model = Small()
    average = EMA(model, 0.15)
    for step, value in enumerate((3.0, 7.0)):
        model.weight.data.fill_(value)
        model.running.fill_(10 * value)
        model.seen.fill_(step + 1)
        average.update(step)
    first = 0.1 * torch.tensor([1.0, 2.0]) + 0.9 * 3
    torch.testing.assert_close(average.shadow["weight"], 0.15 * first + 0.85 * 7)
    torch.testing.assert_close(average.shadow["running"], torch.tensor([0.15 * 27 + 0.85 * 70]))
    assert average.shadow["seen"] == 2 and average.shadow["seen"].dtype == torch.int64
    assert set(average.shadow) == {"weight", "running", "seen"}


class Draw(Small, RandomFeatures):
    """A module whose buffers are a random draw, around one whose buffers are not."""

    def __init__(self):
        super().__init__()
        self.inner = Small()


def test_random_draws_are_not_averaged():
    model = nn.Sequential(Draw())
    assert random_buffers(model) == {"0.running", "0.seen", "0.scratch"} and random_buffers(Small()) == set()
    average = EMA(model, 0.15)
    model[0].running.fill_(10.0)
    model[0].inner.running.fill_(10.0)
    average.update(0)
    assert average.shadow["0.running"] == 10.0 and average.shadow["0.inner.running"] == 9.0


def test_a_long_run_forgets_at_the_decay_that_was_set():
    model = Small()
    average = EMA(model, 0.9)
    average.update(1_000_000)
    model.weight.data.zero_()
    average.update(1_000_001)
    torch.testing.assert_close(average.shadow["weight"], 0.9 * torch.tensor([1.0, 2.0]))


def test_the_average_is_lent_and_given_back():
    model = Small()
    average = EMA(model, 0.5)
    average.shadow["weight"].fill_(9.0)
    optimizer = torch.optim.SGD([model.weight], lr=1.0)
    with pytest.raises(KeyError), average.applied():
        assert model.weight.tolist() == [9.0, 9.0]
        raise KeyError
    assert model.weight.tolist() == [1.0, 2.0] and average.shadow["weight"].tolist() == [9.0, 9.0]
    model.weight.sum().backward()
    optimizer.step()
    assert model.weight.tolist() == [0.0, 1.0], "the optimizer still holds the model's own tensors"


def test_read_and_load_copy_in_place(tmp_path):
    model = Small()
    average, before = EMA(model, 0.5), model.weight

    def stored(**tensors):
        return StoredTensors([save_shards(tmp_path, "weights", own_shards(tensors))])

    new = stored(weight=torch.tensor([4.0, 6.0], dtype=torch.float64), seen=torch.tensor(8))
    read_weights(model, new)
    average.load(new)
    assert model.weight is before and model.weight.dtype == torch.float32
    assert model.weight.tolist() == average.shadow["weight"].tolist() == [4.0, 6.0] and model.seen == 8
    with pytest.raises(KeyError):
        read_weights(model, stored(of_another_model=torch.zeros(1)))
    with pytest.raises(ValueError, match=r"weight is \[3\] there and \[2\] here"):
        read_weights(model, stored(weight=torch.zeros(3)))


@pytest.fixture
def checkpoint(tmp_path):
    def make(name, **files):
        (tmp_path / name / "resume").mkdir(parents=True)
        for file, tensors in files.items():
            save_shards(tmp_path / name / "resume", file, own_shards(tensors))
        return tmp_path / name

    return make


def mean(folders, from_first=frozenset()):
    tensors = MeanTensors([exported_weights(folder) for folder in folders], from_first)
    return {name: tensors.rows(name) for name in tensors}


def test_mean_of_checkpoints(checkpoint):
    folders = [
        checkpoint(f"c{i}", weights={"w": torch.tensor([v, 0.1]), "seen": torch.tensor(10 * i)})
        for i, v in enumerate((1.0, 2.0, 6.0))
    ]
    got = mean(folders)
    torch.testing.assert_close(got["w"], torch.tensor([3.0, 0.1], dtype=torch.float64), atol=1e-8, rtol=0)
    assert got["seen"] == 0 and got["seen"].dtype == torch.int64, "counts come from the first"


def test_the_mean_of_checkpoints_takes_draws_from_the_first(checkpoint):
    folders = [checkpoint(f"d{v}", weights={"w": torch.tensor([v]), "draw": torch.tensor([v])}) for v in (1.0, 2.0)]
    got = mean(folders, {"draw"})
    assert got["w"].tolist() == [1.5] and got["draw"].tolist() == [1.0]


def test_what_was_evaluated_is_what_is_averaged(checkpoint):
    plain = checkpoint("plain", weights={"w": torch.tensor([1.0])})
    ema = checkpoint("ema", weights={"w": torch.tensor([100.0])}, ema={"w": torch.tensor([3.0])})
    assert exported_weights(plain).rows("w") == 1.0 and exported_weights(ema).rows("w") == 3.0
    assert mean([plain, ema])["w"].tolist() == [2.0]
