"""Who speaks when: from segments to targets, in pieces of recordings, and back to scores."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from lhotse.cut import MixedCut, MixTrack

from stentor.data.batch import Prediction
from stentor.data.cut import cut_from_record, record_from_cut, segments_of, uem_of
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError
from stentor.losses.all_paths import CTCLoss
from stentor.losses.base import Loss
from stentor.losses.diarization import PermutationInvariantBCE, PowersetLoss
from stentor.losses.hidden import Contrastive, NormRegularisation
from stentor.models.encoders.features import Features
from stentor.models.transformer.processor import TransformerProcessor
from stentor.tasks.diarize.frames import activity, frame_coverage, pools, spans_of_pieces
from stentor.tasks.diarize.labels.binary import Binary, Overlap
from stentor.tasks.diarize.labels.powerset import Powerset
from stentor.tasks.diarize.labels.speaker import Ego, SpeakerLabels
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.diarize.windows import Windows


def segment(speaker, start, end):
    return {"speaker": speaker, "start": start, "end": end}


# Frames ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("segments", "frames", "duration", "names", "first"),
    [
        # ann: half of the first frame counts, half of the fourth too; ben: neither 40 % of a frame.
        ([("ann", 0.05, 0.35), ("ben", 0.26, 0.34), ("ann", 0.449, 0.5)], 6, 0.6, ["ann"], [1, 1, 1, 1, 1, 0]),
        ([("ann", 0.22, 0.25)], 3, 0.25, ["ann"], [0, 0, 1]),  # 30 of the last frame's 50 ms
        ([("zoe", 0.1, 0.2), ("ann", 0.0, 0.1), ("ben", 0.2, 0.3)], 3, 0.3, ["ann", "zoe", "ben"], [1, 0, 0]),
    ],
)
def test_a_frame_is_on_from_half_of_it_and_speakers_come_in_order_of_arrival(segments, frames, duration, names, first):
    active, arrived = activity([segment(*s) for s in segments], frames, 0.1, duration)
    assert arrived == names and active[:, 0].tolist() == first
    assert activity([segment("cid", 0.351, 0.449)], 6, 0.1, 0.6)[0].shape == (6, 0)
    beyond = frame_coverage([(0, 9)], 5, 0.1, 0.25)
    assert beyond.tolist() == pytest.approx([1, 1, 1, 0, 0])  # there is nothing to cover


def test_coverage_is_exact():
    rng = np.random.default_rng(0)
    edges = np.sort(rng.uniform(0, 5, 20)).reshape(-1, 2)
    shares = frame_coverage(edges, 63, 0.08, 5.0)
    fine = (np.arange(500_000) + 0.5) / 100_000
    inside = ((fine[:, None] >= edges[:, 0]) & (fine[:, None] < edges[:, 1])).any(1)
    expected = [inside[(fine >= t * 0.08) & (fine < (t + 1) * 0.08)].mean() for t in range(63)]
    np.testing.assert_allclose(shares, expected, atol=2e-3)


def test_rounding_to_frames_does_not_lengthen_or_shorten_speech():
    rng = np.random.default_rng(1)
    starts = np.arange(400) * 5 + rng.uniform(0, 1, 400)
    segments = [segment("ann", s, s + d) for s, d in zip(starts, rng.uniform(0.2, 3, 400))]
    active, _ = activity(segments, 20_000, 0.1, 2000.0)
    assert active.sum() * 0.1 == pytest.approx(sum(s["end"] - s["start"] for s in segments), rel=3e-3)


def test_pools_are_two_halves_of_the_frames_that_one_speaker_has_alone():
    active = np.zeros((10, 3), bool)
    active[0:5, 0] = True
    active[3:9, 1] = True
    active[4, 2] = True
    scored = np.ones(10, bool)
    scored[8] = False
    weights, labels = pools(active, ["ann", "ben", "cid"], scored)
    assert [np.flatnonzero(row).tolist() for row in weights] == [[0, 1], [2], [5, 6], [7]]
    assert weights.sum(1).tolist() == pytest.approx([1] * 4)
    assert labels[0] == labels[1] != labels[2] == labels[3]
    assert (labels >= 0).all()
    weights, labels = pools(active[:, 2:], ["cid"], scored)  # one frame is no pair
    assert weights.shape == (0, 10) and labels.shape == (0,)


# Pieces ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "chunk", "shift", "spans"),
    [
        (5, 20, None, [(0, 5)]),
        (20, 20, None, [(0, 20)]),
        (24.9, 20, None, [(0, 24.9)]),
        (25, 20, None, [(0, 20), (20, 25)]),
        (64, 20, None, [(0, 20), (20, 40), (40, 64)]),
        (66, 20, None, [(0, 20), (20, 40), (40, 60), (60, 66)]),
        (21.5, 8, 6, [(0, 8), (6, 14), (12, 21.5)]),
        (22, 8, 6, [(0, 8), (6, 14), (12, 20), (18, 22)]),
        (30, 8, 12, [(0, 8), (12, 20), (24, 30)]),
    ],
)
def test_pieces_reach_to_the_end(seconds, chunk, shift, spans):
    assert spans_of_pieces(seconds, chunk, shift) == [pytest.approx(span) for span in spans]


@pytest.mark.parametrize("shift", [None, 3.0, 7.7, 10.0])
def test_pieces_leave_nothing_out(shift):
    for seconds in np.random.default_rng(2).uniform(0.1, 100, 200):
        spans = spans_of_pieces(float(seconds), 10.0, shift)
        assert spans[0][0] == 0 and spans[-1][1] == seconds
        assert all(b >= c for (_, b), (c, _) in pairwise(spans))
        assert all(end - start <= 12.5 for start, end in spans)
        assert all(end - start >= 2.5 for start, end in spans[1:])


def cut(tmp_path, **record):
    record = {"id": "meeting", "audio_path": "a.wav", "duration": 50.0, **record}
    return cut_from_record(record, tmp_path, "test")


def test_a_recording_is_cut_with_its_segments(tmp_path):
    recording = cut(tmp_path, segments=[segment("ann", 3, 12), segment("ben", 19, 31.5), segment("ann", 45, 50)])
    pieces = list(Diarize(chunk=10).training_segments(recording))
    assert [p.id for p in pieces] == ["meeting#0", "meeting#10", "meeting#20", "meeting#30", "meeting#40"]
    assert [(p.start, p.duration) for p in pieces] == [(10.0 * i, 10.0) for i in range(5)]
    assert [segments_of(p) for p in pieces] == [
        [segment("ann", 3, 10)],
        [segment("ann", 0, 2), segment("ben", 9, 10)],
        [segment("ben", 0, 10)],
        [segment("ben", 0, 1.5)],
        [segment("ann", 5, 10)],
    ]
    assert list(Diarize(chunk=50).training_segments(recording)) == [recording]


def test_pieces_beyond_the_uem_are_left_out(tmp_path):
    recording = cut(tmp_path, segments=[segment("ann", 3, 48)], uem=[[12, 18], [39, 45]])
    pieces = list(Diarize(chunk=10).training_segments(recording))
    assert [p.id for p in pieces] == ["meeting#10", "meeting#30", "meeting#40"]
    assert [uem_of(p) for p in pieces] == [[[2, 8]], [[9, 10]], [[0, 5]]]


def test_mixed_recordings_are_cut_too(tmp_path):
    one = cut(tmp_path, id="one", segments=[segment("ann", 1, 14)], duration=15.0)
    two = cut(tmp_path, id="two", segments=[segment("ben", 0, 9)], duration=10.0)
    mixed = MixedCut("mix", [MixTrack(one), MixTrack(two, offset=12.0)])
    pieces = list(Diarize(chunk=11).training_segments(mixed))
    assert [p.id for p in pieces] == ["mix#0", "mix#11"]
    assert segments_of(pieces[1]) == [segment("ann", 0, 3), segment("ben", 1, 10)]


def test_silence_is_a_label_and_no_segments_are_not(tmp_path):
    task = Diarize()
    assert task.drop_reason(cut(tmp_path))[0] == "no_segments"
    assert task.drop_reason(cut(tmp_path, text="what they say"))[0] == "no_segments"
    assert task.drop_reason(cut(tmp_path, speaker="ann")) is None
    silent = cut(tmp_path, segments=[])
    assert task.drop_reason(silent) is None and segments_of(silent) == []
    again = cut_from_record(record_from_cut(silent), tmp_path, "test")
    assert record_from_cut(silent)["segments"] == [] and task.drop_reason(again) is None


def test_too_many_speakers_are_told_of(tmp_path):
    segments = [segment(name, start, start + 3) for start, name in enumerate(["ann", "ben", "cid", "dan"] * 2)]
    task = Diarize(labels=SpeakerLabels(speakers=3), chunk=6)
    pieces = list(task.training_segments(cut(tmp_path, segments=segments, duration=12.0)))
    (line,) = task.data_warnings(pieces)
    assert line.startswith("2 of 2 training pieces have more than the 3 speakers of `task.labels.speakers`, up to 4")
    assert "(meeting#0, meeting#6)" in line
    assert Diarize(labels=SpeakerLabels(speakers=4), chunk=6).data_warnings(pieces) == []
    assert Diarize(labels=Binary(), chunk=6).data_warnings(pieces) == []


# Batches --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processor():
    return TransformerProcessor(Features(stack=1, subsample=10))


RNG = np.random.default_rng(0)


def example(task, processor, tmp_path, seconds, rng=RNG, played=None, **record):
    piece = cut(tmp_path, duration=float(seconds), **record)
    audio = 0.01 * np.random.default_rng(3).standard_normal(round((played or seconds) * processor.sample_rate))
    return task.example(piece, audio.astype(np.float32), rng)


def ready(task, **losses):
    task.requirements(losses or task.losses())
    return task


def test_targets_and_their_number(processor, tmp_path):
    task = ready(Diarize(labels=SpeakerLabels(speakers=3)))
    examples = [
        example(task, processor, tmp_path, 2, segments=[segment("ann", 0.5, 1.5)]),
        example(task, processor, tmp_path, 3, segments=[segment("ben", 0, 3), segment("ann", 1, 2)], uem=[[0, 1.2]]),
    ]
    batch = task.collate(examples, processor, False)
    targets = batch.inputs["targets"]
    assert targets.shape == (2, 30, 3) and targets.dtype == torch.float32
    assert targets.shape[:2] == batch.inputs["features"].shape[:2]
    assert targets[0, :20, 0].tolist() == [0] * 5 + [1] * 10 + [0] * 5
    assert (targets[0, 20:] == -100).all() and (targets[1, 12:] == -100).all()
    assert targets[1, :12, 0].tolist() == [1] * 12 and targets[1, :12, 1].tolist() == [0] * 10 + [1] * 2
    assert not targets[:, :12, 2].any()
    assert batch.counts == {"speakers": (20 + 12) * 3}


@pytest.mark.parametrize(("labels", "per_frame"), [(Powerset(), True), (Binary(), False), (Overlap(), False)])
def test_counts_are_frames_or_entries(processor, tmp_path, labels, per_frame):
    task = ready(Diarize(labels=labels))
    batch = task.collate([example(task, processor, tmp_path, 2, segments=[segment("a", 0, 1)])], processor, False)
    (count,) = batch.counts.values()
    assert count == 20
    outputs = torch.zeros(1, 20, labels.classes)
    (loss,) = task.losses().values()
    mean = float(loss.sum(logits=outputs, targets=batch.inputs["targets"])) / count
    assert mean == pytest.approx(math.log(labels.classes) if per_frame else math.log(2), rel=1e-5)


def test_audio_that_is_played_faster_takes_its_segments_along(processor, tmp_path):
    task = ready(Diarize())
    fast = example(task, processor, tmp_path, 4, played=2, segments=[segment("ann", 1, 3)], uem=[[0, 3.6]])
    targets = task.collate([fast], processor, False).inputs["targets"][0, :, 0]
    assert targets.tolist() == [0] * 5 + [1] * 10 + [0] * 3 + [-100] * 2


def test_features_that_are_stored_need_no_audio(processor, tmp_path):
    task = ready(Diarize())
    plain = example(task, processor, tmp_path, 2, segments=[segment("ann", 0.5, 1.5)])
    stored = task.example(cut(tmp_path, duration=2.0, segments=[segment("ann", 0.5, 1.5)]), None, RNG)
    stored.extra |= {"features": processor.features.raw(plain.audio), "samples": len(plain.audio)}
    both = [task.collate([e], processor, False).inputs for e in (plain, stored)]
    assert torch.equal(both[0]["targets"], both[1]["targets"])
    torch.testing.assert_close(both[0]["features"], both[1]["features"])


def test_whole_recordings_are_evaluated_in_pieces(processor, tmp_path):
    task = ready(Diarize(chunk=4))
    record = {"segments": [segment("ann", 2, 6), segment("ben", 5, 9.5)], "uem": [[1, 9]]}
    batch = task.collate([example(task, processor, tmp_path, 10, rng=None, **record)], processor, False)
    assert batch.ids == ["meeting#0", "meeting#4", "meeting#8"]
    targets = batch.inputs["targets"]
    assert targets.shape == (3, 40, 4)
    assert targets[0, :, 0].tolist() == [-100] * 10 + [0] * 10 + [1] * 20
    assert targets[1, :, 0].tolist() == [1] * 20 + [0] * 20
    assert targets[1, :, 1].tolist() == [0] * 10 + [1] * 30
    assert targets[2, :, 0].tolist() == [1] * 10 + [-100] * 30
    # ... and the same as of the pieces that training has.
    pieces = list(task.training_segments(cut(tmp_path, duration=10.0, **record)))
    audio = example(task, processor, tmp_path, 10).audio
    cuts = [(p, audio[round(p.start * 16000) : round(p.end * 16000)]) for p in pieces]
    same = task.collate([task.example(p, a, RNG) for p, a in cuts], processor, False)
    assert same.ids == batch.ids and same.counts == batch.counts
    assert torch.equal(same.inputs["targets"], targets)


class Linear(torch.nn.Module):
    """Labels frames by one layer; counts its calls."""

    def __init__(self, size, classes):
        super().__init__()
        torch.manual_seed(0)
        self.out, self.voice, self.rows = torch.nn.Linear(size, classes), torch.nn.Linear(size, 8), []

    def forward(self, features, lengths, targets, pools=None, pool_labels=None):
        self.rows.append(len(features))
        outputs = {
            "logits": {"logits": self.out(features), "targets": targets},
            "hidden": {"hidden": features, "lengths": lengths},
        }
        if pools is not None:
            voices = torch.nn.functional.normalize(pools @ self.voice(features), dim=-1)
            outputs["embeddings"] = {"embeddings": voices.flatten(0, 1), "labels": pool_labels.flatten()}
        return outputs


def test_many_pieces_go_through_the_model_in_turns(processor, tmp_path):
    losses = {"a": PermutationInvariantBCE(), "n": NormRegularisation(), "v": Contrastive()}
    task = ready(Diarize(chunk=1, windows=Windows(batch=4)), **losses)
    segments = [segment("ann" if i % 2 else "ben", i, i + 1) for i in range(10)]
    batch = task.collate([example(task, processor, tmp_path, 10, rng=None, segments=segments)], processor, False)
    model = Linear(processor.size, 4)
    with torch.no_grad():
        sums = task.loss_sums(model, batch, losses)
    assert model.rows == [4, 4, 2]
    assert batch.counts == {"a": 400, "n": 100, "v": 20}
    outputs = model(**batch.inputs)
    for term in ("a", "n"):
        torch.testing.assert_close(sums[term], losses[term].sum(**outputs[losses[term].scores]).detach())
    assert sums["v"] > 0


def test_embeddings_of_a_speaker_are_pairs(processor, tmp_path):
    losses = {"a": PermutationInvariantBCE(), "voice": Contrastive()}
    task = ready(Diarize(), **losses)
    both = [
        example(task, processor, tmp_path, 2, segments=[segment("ann", 0, 1), segment("ben", 0.5, 2)]),
        example(task, processor, tmp_path, 2, id="next", segments=[segment("ann", 0.2, 1)]),
        example(task, processor, tmp_path, 2, id="none", segments=[]),
    ]
    batch = task.collate(both, processor, False)
    labels = batch.inputs["pool_labels"]
    assert batch.inputs["pools"].shape == (3, 4, 20) and labels.shape == (3, 4)
    assert labels[0, 0] == labels[0, 1] == labels[1, 0] == labels[1, 1] != labels[0, 2] == labels[0, 3]
    assert (labels[1, 2:] == -100).all() and (labels[2] == -100).all()
    assert batch.counts["voice"] == 6
    local = ready(Diarize(speaker_names="local"), **losses)
    labels = local.collate(both, processor, False).inputs["pool_labels"]
    assert labels[0, 0] == labels[0, 1] and labels[0, 0] != labels[1, 0]


def test_a_voice_at_another_speed_is_another_voice(processor, tmp_path):
    task = ready(Diarize(), a=PermutationInvariantBCE(), voice=Contrastive())
    examples = [
        example(task, processor, tmp_path, 4, played=played, segments=[segment("ann", 0, 4)]) for played in (4, 4, 5)
    ]
    labels = task.collate(examples, processor, False).inputs["pool_labels"][:, 0].tolist()
    assert labels[0] == labels[1] != labels[2]


def test_pieces_of_one_recording_share_its_local_names(processor, tmp_path):
    task = ready(Diarize(chunk=2, speaker_names="local"), a=PermutationInvariantBCE(), voice=Contrastive())
    recording = example(task, processor, tmp_path, 4, rng=None, segments=[segment("ann", 0, 4)])
    labels = task.collate([recording], processor, False).inputs["pool_labels"]
    assert len(labels) == 2 and len(set(labels.flatten().tolist())) == 1


def test_only_losses_of_frames():
    with pytest.raises(ConfigError, match=r"losses.x: `ctc` does not score labels of frames.*use `pit_bce`"):
        Diarize().requirements({"x": CTCLoss()})
    needs = Diarize(labels=Powerset()).requirements({"a": PowersetLoss(), "n": NormRegularisation()})
    assert (needs.classes, needs.scores, needs.terms) == (7, ("hidden", "logits"), ("a", "n"))


@pytest.mark.parametrize(
    ("labels", "fits", "refused"),
    [
        (
            SpeakerLabels(speakers=3),
            "pit_bce ats_bce",
            "bce_with_logits bce mse mae smooth_l1 huber focal kl_div nll ego",
        ),
        (SpeakerLabels(speakers=8), "pit_bce", "bce_with_logits focal cross_entropy powerset"),
        (SpeakerLabels(speakers=1), "pit_bce bce_with_logits mse focal", "cross_entropy"),
        (Powerset(speakers=3, at_once=2), "powerset", "pit_bce bce_with_logits kl_div cross_entropy"),
        (Ego(speakers=2), "ego", "pit_bce mse nll"),
        (Binary(), "bce_with_logits mse focal pit_bce kl_div", "nll"),
    ],
)
def test_losses_that_do_not_fit_the_labels_are_refused_before_training(labels, fits, refused):
    for kind in fits.split():
        Diarize(labels=labels).requirements({"x": Loss.model_validate(kind)})
    for kind in refused.split():
        with pytest.raises(ConfigError, match=rf"losses.*`{kind}`"):
            Diarize(labels=labels).requirements({"x": Loss.model_validate(kind)})


# Scores ---------------------------------------------------------------------------------------------------------------


def prediction(task, tmp_path, answer, **record):
    return Prediction("meeting", task.reference(cut(tmp_path, **record)), {"segments": answer})


def test_a_reference_is_in_the_terms_of_the_labels(tmp_path):
    record = {"segments": [segment("ann", 0, 6), segment("ben", 4, 10)], "duration": 10.0}
    for labels, answer in (
        (SpeakerLabels(), [segment("x", 4, 10), segment("y", 0, 6)]),
        (Binary(), [segment("speech", 0, 10)]),
        (Overlap(), [segment("overlap", 4, 6)]),
    ):
        task = Diarize(labels=labels)
        perfect = prediction(task, tmp_path, answer, **record)
        assert task.score([perfect])["der"].value == 0
        assert perfect.reference["speakers"] == 2
        worse = prediction(task, tmp_path, answer[:-1], **record)
        assert task.score([worse])["der"].value > 0.4
        assert task.change([worse], [perfect])["der"].value == -1
        assert task.change([perfect], [worse]) == {}
    assert Diarize().main_metric() == ("der", "min")
    assert next(iter(Diarize().score([prediction(Diarize(), tmp_path, [], **record)]))) == "der"


# Through the command line ---------------------------------------------------------------------------------------------

RUN = """\
name: speaker
output: "{runs}"
task: {{type: diarize, labels: {{type: speaker, speakers: 2}}, chunk: 8}}
model: {{type: transformer, shared: {{d_model: 32, layers: 1, heads: 2}}, features: {{stack: 3, subsample: 10}}}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{folder}/dev.jsonl"}}}}
  batch_tokens: 400
  by: [speakers, id]
  workers: 0
optim: {{lr: 5e-3}}
schedule: {{warmup_steps: 5}}
train: {{steps: 60, log_every: 5, eval_every: 30, device: cpu}}
"""
PRETRAINED = """{type: transformer, shared: {d_model: 16, layers: 1, heads: 2}, ssl: {subsample: 5, config:
 {model_type: whisper, num_mel_bins: 80, d_model: 16, encoder_layers: 1, encoder_attention_heads: 2,
  encoder_ffn_dim: 16, max_source_positions: 400}}}"""


@pytest.fixture(scope="module")
def trained(meetings, tmp_path_factory, together):
    """The folder of the runs `speaker`, `held` and `pretrained`, whose encoder hears 8 s at most, and what
    was said."""
    runs = tmp_path_factory.mktemp("diarize")
    config = runs / "speaker.yaml"
    config.write_text(RUN.format(folder=meetings, runs=runs))
    printed = together(
        [
            ["train", config],
            ["train", config, "name=held", "train.steps=2", "data.eval={dev: {type: held_out, share: 0.4}}"],
            ["train", config, "name=pretrained", "train.steps=2", f"model={PRETRAINED}"],
            ["evaluate", runs / "speaker", "--data", meetings / "dev.jsonl", "--json", runs / "scores.json"],
            ["evaluate", runs / "pretrained", "--data", meetings / "train.jsonl", "--json", runs / "long.json"],
        ],
        processes=1,
    )
    return runs, printed


def results(run):
    return json.loads((run / "results.json").read_text())


def test_a_run_learns_and_its_export_does_what_the_model_did(trained):
    runs, printed = trained
    folder, run = runs / "speaker", results(runs / "speaker")
    scores = run["eval"]["dev"]
    assert next(iter(scores)) == "der" and scores["der"]["value"] < 0.25
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses[-1] < 0.6 * losses[0]
    assert any("eval/dev/loss" in row and "eval/dev/der" in row for row in rows)
    lines = (folder / "predictions" / "dev.jsonl").read_text().splitlines()
    assert [json.loads(line)["seconds"] for line in lines] == [4, 7, 18]  # whole recordings, longer than a chunk
    assert run["data"]["used"] == 12 and run["data"]["dropped"] == {}  # 21 s are three pieces, 12.5 s two
    assert "of 12 training pieces" not in printed
    checked = run["export"]
    assert checked["clips"] == 3 and checked["der"]["model"] == checked["der"]["export"]
    assert "Export checked on 3 clips: DER" in printed
    again = json.loads((runs / "scores.json").read_text())["eval"]
    assert {k: v["value"] for k, v in again.items()} == {k: v["value"] for k, v in scores.items()}
    card = (folder / "export" / "README.md").read_text()
    assert "stentor diarize speaker meeting.wav" in card and "Trained on 8 seconds at a time" in card
    assert "at most 2 speakers apart" in card and "no collar, overlap scored" in card


def test_recordings_that_are_held_out_stay_whole(trained):
    runs, _ = trained
    rows = [json.loads(x) for x in (runs / "held" / "predictions" / "dev.jsonl").read_text().splitlines()]
    held_out = {row["id"] for row in rows}
    assert held_out and not any("#" in name for name in held_out)
    lengths = {f"train{i}": s for i, s in enumerate([4, 5.5, 7, 8, 8, 21, 6, 12.5])} | {"quiet": 3.0}
    assert {row["id"]: row["seconds"] for row in rows} == {name: lengths[name] for name in held_out}
    used = sum(len(spans_of_pieces(s, 8, None)) for name, s in lengths.items() if name not in held_out)
    assert results(runs / "held")["data"]["used"] == used


def test_recordings_are_longer_than_an_encoder_hears(trained, meetings):
    runs, _ = trained
    records = [json.loads(line) for line in (meetings / "train.jsonl").read_text().splitlines()]
    scores = json.loads((runs / "long.json").read_text())
    assert max(r["duration"] for r in records) == 21 and scores["records"] == len(records)
    assert len((runs / "pretrained" / "predictions" / "dev.jsonl").read_text().splitlines()) == 3
    processor = TransformerProcessor.load(runs / "pretrained" / "export")
    assert processor.max_seconds == 8
    for key, settings in (("chunk", {"chunk": 9}), ("windows.window", {"windows": Windows(window=8.5)})):
        with pytest.raises(ConfigError, match=rf"^task\.{key}: the model takes at most 8 s at once"):
            Diarize(**{"chunk": 8} | settings).check_processor(processor)


def test_audio_of_a_piece_is_that_of_the_recording(meetings):
    record = json.loads((meetings / "train.jsonl").read_text().splitlines()[5])
    recording = cut_from_record(record, meetings, "test")
    audio = load_audio(recording)
    for piece in Diarize(chunk=8).training_segments(recording):
        first = round(piece.start * 16000)
        np.testing.assert_array_equal(load_audio(piece), audio[first : first + round(piece.duration * 16000)])


def test_pieces_leave_no_gap():
    with pytest.raises(ValueError, match="gaps"):
        Diarize(chunk=10, shift=12)


def test_merged_segments_are_told(tmp_path):
    from stentor.audio.io import write
    from stentor.sources.rttm import Rttm

    write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.1, 16000 * 30).astype(np.float32), 16000)
    lines = [
        f"SPEAKER a 1 {start} {seconds} <NA> <NA> x <NA> <NA>"
        for start, seconds in ((1, 12), (2, 3), (20, 0), (28, 2.3))
    ]
    (tmp_path / "a.rttm").write_text("\n".join(lines) + "\n")
    task = Diarize(chunk=10)
    pieces = [piece for cut in Rttm(path=tmp_path / "a.rttm").cuts() for piece in task.training_segments(cut)]
    assert len(pieces) == 3
    assert task.data_warnings(pieces) == [
        "Segments of one speaker that overlap were merged: 1, in a.",
        "Segments that end after the audio were clipped: 1, in a.",
        "Segments without a duration were left out: 1, in a.",
    ]
