"""VBx: a Bayesian hidden Markov model of a recording's voices, which finds how many speakers there are (Landini et al.
2022, arXiv 2012.14952, "Bayesian HMM clustering of x-vector sequences").

A state is a speaker, whose vector y_s has the prior N(0, I); an observation x_t of the speaker s comes from N(V y_s,
I), where V V^T is the covariance between speakers and I that within one. Variational inference starts from more
clusters than there are speakers; those that explain nothing lose their share and vanish. Fa scales the evidence, Fb
the prior: a smaller Fa, or a larger Fb, makes fewer speakers.

Two things differ from the paper, whose PLDA is trained on a corpus and whose sequence has one x-vector a moment. The
covariances are those of the recording: tracks of its windows show how a voice varies (`speaker_space`). And several
speak at once: each track is a chain of its own, within which a speaker stays with the probability `loop`; with one
track that is the paper's model.
"""

from dataclasses import dataclass

import numpy as np

SHRINKAGE = 0.5
"""Shrinkage of the covariance within voices towards a multiple of I, because there are few pairs."""
INITIAL = 7.0
"""Log odds of the cluster that a voice begins in against each other one."""
LEAST_SHARE = 1e-3
"""Speakers with a smaller share of the recording are none."""
ITERATIONS = 300
GAIN = 1e-6
"""Least gain of the evidence of a voice by an iteration: two clusters of one speaker become one slowly."""


def speaker_space(voices: np.ndarray, same: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(voices [N, D] in a space where they vary by I within a speaker and by a diagonal matrix between speakers, that
    diagonal [D], largest first), float64.

    `voices` float [N, E] are all, `same` int64 [P, 2] pairs of one speaker (at least one). Directions in which speakers
    do not differ, as far as can be seen, are left out.
    """
    x = voices.astype(np.float64) - voices.mean(0, dtype=np.float64)
    differences = x[same[:, 0]] - x[same[:, 1]]
    within = differences.T @ differences / (2 * len(same))
    within = (1 - SHRINKAGE) * within + (SHRINKAGE * np.trace(within) / len(within) + 1e-9) * np.eye(len(within))
    values, axes = np.linalg.eigh(within)
    white = x @ (axes / np.sqrt(values))
    total, directions = np.linalg.eigh(white.T @ white / len(white))
    between = total[::-1] - 1
    kept = max(int((between > 0).sum()), 1)
    return white @ directions[:, ::-1][:, :kept], np.maximum(between[:kept], 1e-6)


@dataclass(frozen=True)
class Speakers:
    """Result of VBx."""

    posterior: np.ndarray
    """Probability of each speaker for each voice, float64 [N, S]."""
    shares: np.ndarray
    """Share of each speaker in all voices, float64 [S]."""
    evidence: float
    """The lower bound of the log likelihood."""


def vbx(
    voices: np.ndarray, between: np.ndarray, initial: np.ndarray, chains: np.ndarray, fa: float, fb: float, loop: float
) -> Speakers:
    """Speakers of `voices` float [N, D] whose covariance is I within and diag(`between` [D]) between speakers.

    `initial` int64 [N] are the clusters to begin with, `chains` int64 [N] what belongs together: a voice follows the
    one before it in its chain, and is the same speaker's with the probability `loop`.
    """
    x, phi = voices.astype(np.float64), between.astype(np.float64)
    odds = np.where(initial[:, None] == np.arange(initial.max() + 1), INITIAL, 0.0)
    gamma = np.exp(odds) / np.exp(odds).sum(1, keepdims=True)
    shares = np.full(gamma.shape[1], 1 / gamma.shape[1])
    rho = x * np.sqrt(phi)
    constant = -0.5 * ((x**2).sum(1) + x.shape[1] * np.log(2 * np.pi))
    sequences = [np.flatnonzero(chains == chain) for chain in np.unique(chains)]
    evidence = -np.inf
    for _ in range(ITERATIONS):
        precision = 1 + fa / fb * gamma.sum(0)[:, None] * phi  # [S, D]
        mean = fa / fb * (gamma.T @ rho) / precision
        log_likelihood = fa * (rho @ mean.T - 0.5 * (1 / precision + mean**2) @ phi + constant[:, None])
        total, entries = 0.0, np.zeros_like(shares)
        for rows in sequences:
            gamma[rows], entered, sequence_total = _forward_backward(log_likelihood[rows], shares, loop)
            total, entries = total + sequence_total, entries + entered
        previous, evidence = evidence, total + fb * 0.5 * float((1 - np.log(precision) - 1 / precision - mean**2).sum())
        shares = entries / entries.sum()
        if evidence - previous < GAIN * len(x):
            break
    alive = shares >= LEAST_SHARE
    posterior = gamma[:, alive] / np.maximum(gamma[:, alive].sum(1, keepdims=True), 1e-300)
    return Speakers(posterior, shares[alive] / shares[alive].sum(), evidence)


def _forward_backward(
    log_likelihood: np.ndarray, shares: np.ndarray, loop: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """(posterior [T, S], how often each state was entered by its share [S], log likelihood) of one chain, whose state
    stays with the probability `loop` and is otherwise drawn by the `shares`."""
    peak = log_likelihood.max(1, keepdims=True)
    likelihood = np.exp(log_likelihood - peak)
    forward, backward = np.zeros_like(likelihood), np.ones_like(likelihood)
    scales = np.zeros(len(likelihood))
    arriving = shares
    for t in range(len(likelihood)):
        forward[t] = arriving * likelihood[t]
        scales[t] = max(forward[t].sum(), 1e-300)
        forward[t] /= scales[t]
        arriving = loop * forward[t] + (1 - loop) * shares
    for t in range(len(likelihood) - 2, -1, -1):
        after = likelihood[t + 1] * backward[t + 1] / scales[t + 1]
        backward[t] = loop * after + (1 - loop) * (shares * after).sum()
    posterior = forward * backward
    posterior /= np.maximum(posterior.sum(1, keepdims=True), 1e-300)
    entered = (1 - loop) * shares * (likelihood[1:] * backward[1:] / scales[1:, None]).sum(0) + posterior[0]
    return posterior, entered, float(np.log(scales).sum() + peak.sum())


def apart_labels(speakers: Speakers, apart: np.ndarray) -> np.ndarray:
    """The speaker of each voice, int64 [N], where pairs that are `apart` (bool [N, N]) never share one: the surest
    voices choose first. -1 where no speaker is left."""
    labels = np.full(len(apart), -1)
    for i in np.argsort(-speakers.posterior.max(1), kind="stable").tolist():
        chances = speakers.posterior[i].copy()
        taken = labels[apart[i] & (labels >= 0)]
        chances[taken] = -1
        if chances.max() >= 0:
            labels[i] = int(chances.argmax())
    found = np.unique(labels[labels >= 0])
    return np.where(labels >= 0, np.searchsorted(found, labels), -1)
