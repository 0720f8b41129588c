"""Which round comes next, which is the best, and what happens after a stop."""

import pytest

from stentor.commands.improve.rounds import (
    FILE,
    Round,
    best_round,
    finished_rounds,
    round_folder,
    run_rounds,
    why_ended,
)


def play(folder, gains, most=9, patience=2, stop_at=None):
    """The rounds of a run in which round N is kept where `gains` says so; a stop before round `stop_at` is done."""
    done = []

    def do(number, best):
        if number == stop_at:
            raise KeyboardInterrupt
        round_folder(folder, number).mkdir()
        done.append((number, None if best is None else best.number))
        return Round(number, gains[number], {"dev": {"wer": {"value": 0.5}}})

    published = []
    rounds, why = run_rounds(folder, do, most, patience, lambda r: published.append(len(r)))
    return done, rounds, why, published


def test_each_round_starts_from_the_best_one_before(tmp_path):
    done, rounds, why, published = play(tmp_path, [True, True, False, True, False, False])
    assert done == [(0, None), (1, 0), (2, 1), (3, 1), (4, 3), (5, 3)]
    assert best_round(rounds).number == 3 and published == [1, 2, 3, 4, 5, 6]
    assert why == "The last 2 rounds gained nothing (`improve.patience`)."


@pytest.mark.parametrize(
    ("gains", "most", "patience", "number", "why"),
    [
        ([True], 0, 2, 1, "All rounds are done"),
        ([True, True, True], 2, 2, 3, "All rounds are done"),
        ([True, False], 5, 1, 2, "The last round gained nothing"),
        ([True, False, False, False], 3, None, 4, "All rounds are done"),
    ],
)
def test_what_ends_the_rounds(tmp_path, gains, most, patience, number, why):
    _, rounds, ended, _ = play(tmp_path, gains, most, patience)
    assert len(rounds) == number and ended.startswith(why)
    assert why_ended(rounds, most, patience) == ended and why_ended([], most, patience) is None


@pytest.mark.parametrize("stop_at", [0, 1, 2, 3])
def test_after_a_stop_only_what_is_missing_is_done(tmp_path, stop_at):
    gains = [True, True, False, True]
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, gains, most=3, stop_at=stop_at)
    assert [r.number for r in finished_rounds(tmp_path)] == list(range(stop_at))
    done, rounds, _, published = play(tmp_path, gains, most=3)
    assert [number for number, _ in done] == list(range(stop_at, 4))
    assert [(r.number, r.kept) for r in rounds] == list(enumerate(gains))
    assert published == list(range(max(stop_at, 1), 5))
    assert play(tmp_path, gains, most=3)[0] == []


def test_a_half_written_round_is_not_done(tmp_path):
    play(tmp_path, [True, True], most=1)
    (round_folder(tmp_path, 1) / FILE).unlink()
    assert [r.number for r in finished_rounds(tmp_path)] == [0]
