"""Leakage: speakers, texts and recordings that an evaluation set shares with the training data. With shared ones, its
figures say nothing about new speakers or texts."""

from collections.abc import Iterable, Iterator, Mapping

from stentor.data.cut import Cut, audio_path, text_of
from stentor.data.storage import full_path
from stentor.dataloading.batch_sampler import BatchSampler
from stentor.dataloading.train_dataset import TrainDataset
from stentor.text.normalize import plain_text

KINDS = ("speakers", "texts", "ids", "recordings")
"""Traits that are compared. Recordings are files, whichever part of them is meant."""

Overlap = dict[str, dict[str, list[int | None]]]
"""Set -> kind -> [how many of them are in the training data too, how many the set has]; null where that is unknown: the
training data is a stream or has an index, or names no speakers."""


def leakage(train: Iterable[Cut] | None, sets: Mapping[str, Iterable[Cut]]) -> Overlap:
    """Speakers, texts, ids and recordings that each set shares with the training data (None: not read whole). Texts
    are equal when their words are: case and punctuation do not count. Of joined and mixed clips the ids and recordings
    are those of the clips in them."""
    held: dict[str, dict[str, set[str]]] = {name: {kind: set() for kind in KINDS} for name in sets}
    for name, cuts in sets.items():
        for cut in cuts:
            for kind, value in _traits(cut):
                held[name][kind].add(value)
    shared: dict[str, dict[str, set[str]]] = {name: {kind: set() for kind in KINDS} for name in sets}
    known = set()
    if sets and train is not None:
        known |= {"ids", "texts", "recordings"}
        for cut in train:
            for kind, value in _traits(cut):
                known.add(kind)
                for name in sets:
                    if value in held[name][kind]:
                        shared[name][kind].add(value)
    return {
        name: {kind: [len(shared[name][kind]) if kind in known else None, len(held[name][kind])] for kind in KINDS}
        for name in sets
    }


def of_run(train: TrainDataset, plans: Mapping[str, BatchSampler]) -> Overlap:
    """`leakage` of the batches of a run's evaluation sets, replayed data included."""
    cuts = {name: (item.cut for items in plan.epoch(0) for item in items) for name, plan in plans.items()}
    return leakage(None if train.streams else train.cuts(), cuts)


def summary_lines(overlap: Overlap) -> list[str]:
    """One line for each set."""
    lines = []
    for name, kinds in overlap.items():
        if all(shared is None for shared, _ in kinds.values()):
            lines.append(f"{name}: what it shares with the training data is unknown: that is not read whole.")
            continue
        common = [f"{shared:,} of {total:,} {kind}" for kind, (shared, total) in kinds.items() if shared]
        if common:
            line = f"{name} shares with the training data: {', '.join(common)}"
        else:
            none = " and no ".join(kind for kind, (shared, total) in kinds.items() if total and shared == 0)
            line = f"{name} shares no {none} with the training data"
        unknown = not kinds["speakers"][1] or kinds["speakers"][0] is None
        lines.append(line + (" (speakers are not named)." if unknown else "."))
    return lines


def _traits(cut: Cut) -> Iterator[tuple[str, str]]:
    if text := plain_text(text_of(cut) or ""):
        yield "texts", text
    for part in _parts(cut):
        path = audio_path(part)
        if path:
            yield "recordings", full_path(path)
        if not (path and f"/{path}".endswith(f"/{part.id}")):  # such an id names the file in its folder, and no more
            yield "ids", part.id
        for speaker in {s.speaker for s in part.supervisions} - {None}:
            yield "speakers", speaker


def _parts(cut: Cut) -> Iterator[Cut]:
    """The cut, or the cuts that it is joined or mixed from, whose own id says nothing."""
    from lhotse.cut import MixedCut, PaddingCut

    if isinstance(cut, MixedCut):
        for track in cut.tracks:
            yield from _parts(track.cut)
    elif not isinstance(cut, PaddingCut):
        yield cut
