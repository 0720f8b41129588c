"""Frame classes: the class of each frame of a recording, decoded and in the reference, for labels with `class_names`.

Labels of speakers (`ego`) have classes for each speaker as the target, and for a target who does not speak: the last
column. Other labels have one column.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np

from stentor.metrics import classification
from stentor.tasks.diarize.aggregate import binarize, frame_weights, identities
from stentor.tasks.diarize.frames import HALF, activity, frame_coverage
from stentor.tasks.diarize.inference import WindowOutputs
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.windows import Windows


def decoded_classes(
    outputs: WindowOutputs, windows: Windows, labels: Labels, tracks: np.ndarray
) -> list[list[list[int]]]:
    """Return runs [class, number of frames] for each target, from the mean of the windows' probabilities. `tracks`: the
    decided activity, bool [F, 1], which is the class of labels with one output."""
    if outputs.classes is None:
        return [_runs(column) for column in tracks.T.astype(int)]
    speakers = np.zeros((len(outputs.classes), 1), np.int64)
    if labels.permutes:
        speakers = identities(outputs, binarize(outputs, windows), windows)
    targets = int(speakers.max()) + 1 + labels.permutes
    sums = np.zeros((outputs.frames, targets, outputs.classes.shape[3]), np.float32)
    for w, (start, length) in enumerate(zip(outputs.starts.tolist(), outputs.lengths.tolist(), strict=True)):
        window = outputs.classes[w, :length].astype(np.float32)
        for k in range(targets):
            track = window[:, speakers[w] == k]
            sums[start : start + length, k] += frame_weights(length)[:, None] * labels.seen_by_target(track, window)
    return [_runs(column) for column in sums.argmax(2).T]


def confusion(labels: Labels, reference: Mapping[str, Any], output: Mapping[str, Any]) -> np.ndarray:
    """Return the confusion matrix of the classes of one recording. Targets are matched one to one, so that most frames
    agree; a target without a counterpart is compared with the one who does not speak."""
    predicted = np.stack([np.repeat(*np.array(runs).T) for runs in output["classes"]], 1)
    grid = len(predicted), output["frame_seconds"], reference["duration"]
    true = labels.frame_classes(*activity(reference.get("turns", reference["segments"]), *grid))
    if reference["uem"] is not None:
        true[frame_coverage(reference["uem"], *grid) < HALF] = -100
    rows, columns = [-1], [-1]
    if labels.permutes:
        from scipy.optimize import linear_sum_assignment

        speakers, num_predicted = true.shape[1] - 1, predicted.shape[1] - 1
        agreement = np.array([[(a == b).sum() for b in predicted.T[:-1]] for a in true.T[:-1]])
        matched = linear_sum_assignment(agreement.reshape(speakers, num_predicted), maximize=True)
        pairs = dict(zip(*(side.tolist() for side in matched), strict=True))
        extra = [column for column in range(num_predicted) if column not in pairs.values()]
        rows += [*range(speakers), *([-1] * len(extra))]
        columns += [*(pairs.get(row, -1) for row in range(speakers)), *extra]
    return classification.confusion(true[:, rows], predicted[:, columns], len(labels.class_names))


def _runs(column: np.ndarray) -> list[list[int]]:
    """Return runs [value, length]."""
    return [[value, len(list(run))] for value, run in groupby(column.tolist())]
