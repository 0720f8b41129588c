"""Data of the universal pipeline: `global_config` with its features, and the sizes of batches."""

import math
from operator import itemgetter

from stentor.config.convert.draft import Conversion, tables
from stentor.config.document import Node

_SAME_FEATURES = (
    "{num_mel_bins,frame_length,frame_shift,sampling_rate,preemph_coeff,window_type,dither,snip_edges,remove_dc_offset,"
    "low_freq,high_freq,num_ceps,cepstral_lifter,use_energy}"
)
_FEATURES = {"feature_type": "type", _SAME_FEATURES: _SAME_FEATURES, "storage_path": "store"}
"""Features: theirs and ours. They stand in `global_config` or in its section `features`."""
_FIXED, _LOADING = itemgetter("features_fixed", "loading")(tables("universal"))
_KALDI = {"use_log_fbank": True, "use_power": True, "htk_mode": False, "htk_compat": False}
"""Required values of features; other values are mistakes."""
_TEXT = 256
"""Positions of a text, and frames a second times seconds of audio: what an item of a batch is counted as."""


class UniversalConversion(Conversion):
    """A conversion, with what its parts have found out."""

    task = "diarize"
    kind = "encoder"
    """Type of the model."""
    labels = ""
    """Labels of the task `diarize`."""
    linear = False
    """Whether any attention is linear."""


def convert_data(job: UniversalConversion) -> None:
    """The section `model.features`, and the sizes of batches."""
    for key, value in _KALDI.items():
        node = job.values.get(name := f"global_config.features.{key}")
        if node is not None and node.value is not value:
            job.wrong(node, name, f"{str(value).lower()}: there are no others here")
    _batches(job, *_features(job))


def _features(job: UniversalConversion) -> tuple[float, float]:
    """Returns the length of an item in seconds and the positions that a second takes."""
    loading = "global_config.data_loading"
    if job.task == "language":
        of_audio = [key for key in job.below("global_config") if key != "global_config.random_seed"]
        job.leave_out("A language model hears nothing:", *of_audio)
        return 1.0, float(_TEXT)
    for part in ("global_config.", "global_config.features."):
        job.move_each({part + theirs: f"model.features.{ours}" for theirs, ours in _FEATURES.items()})
        job.leave_out_each(_FIXED, part)
    if job.task == "diarize" and job.below(loading):
        job.put("model.features.normalize", "mean")  # theirs
    job.put("model.features.stack", _stack(job, f"{loading}."))
    job.move(f"{loading}.subsampling", "model.features.subsample")
    job.leave_out_each(_LOADING, f"{loading}.")
    keys = f"{loading}.chunk_size", "global_config.cut_window_seconds"
    seconds = 30.0
    if job.task == "diarize":
        seconds = job.number(keys[0], job.number(keys[1], 20.0))
    chunk, window = map(job.take, keys)
    if job.task == "diarize":
        job.put("task.chunk", chunk or window or seconds)
        if chunk is not None:
            job.put("task.shift", seconds / 2, chunk)  # theirs
        window = window if chunk is not None else None
    else:
        job.comment_out("Recordings are cut where their utterances end:", [(f"{loading}.chunk_size", chunk)])
    job.comment_out("Recordings are cut for training alone:", [("global_config.cut_window_seconds", window)])
    features = job.made("model.features") or {}
    shift, every = features.get("frame_shift", 0.01), features.get("subsample", 1)
    are_numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 for v in (shift, every))
    return seconds, 1 / (shift * every) if are_numbers else 100.0  # a wrong value is an error when the file is checked


def _stack(job: UniversalConversion, loading: str) -> Node | None:
    """Return the number of joined frames: from `frame_stack`, `context_size` on either side, or `input_dim`."""
    stack = job.take(f"{loading}frame_stack")
    if stack is not None:
        job.leave_out("Frames are joined by `frame_stack`, which is given:", f"{loading}context_size")
        return stack
    each_side = job.number(f"{loading}context_size", 0, 0)
    if (context := job.take(f"{loading}context_size")) is not None:
        return Node(2 * int(each_side) + 1, context.place)
    keys = [key for part in ("encoder", "global_config") if (key := f"model.{part}.input_dim") in job.values]
    if not keys:
        return None
    features = job.made("model.features") or {}
    is_mfcc = features.get("type") == "mfcc"
    bins = features.get("num_ceps", 13) if is_mfcc else features.get("num_mel_bins", 80)
    size = job.number(keys[0], bins)
    if not isinstance(bins, int) or bins < 1 or size % bins:
        job.notes.append(f"input_dim: {size:g} is not a multiple of the {bins} values of a frame: set `stack`.")
        return None
    return Node(int(size) // bins, job.values[keys[0]].place)


def _batches(job: UniversalConversion, seconds: float, rate: float) -> None:
    positions = math.ceil(seconds * rate)
    room = job.number("training.eval_knobs.max_duration") * rate
    if (longest := job.take("training.eval_knobs.max_duration")) is None:
        job.put_batch("training.batch_size", 32, positions)
    else:
        job.put("data.batch_tokens", max(math.ceil(room), positions), longest)
        job.number("training.batch_size")
        job.leave_out("Batches are bounded by their seconds (max_duration):", "training.batch_size")
    room = job.number("training.validation.batch_size") * positions
    if (held_out := job.take("training.validation.batch_size")) is not None:
        job.put("data.eval_batch_tokens", math.ceil(room), held_out)
    loader = "global_config.data_loading.dataloader"
    for key, ours in (("num_workers", "data.workers"), ("prefetch_factor", "data.prefetch")):
        first, second = job.take(f"training.performance.{key}"), job.take(f"{loader}.{key}")
        job.put(ours, first or second)
        if first is not None and second is not None and first.value != second.value:
            job.comment_out("`training.performance` counts:", [(f"{loader}.{key}", second)])
