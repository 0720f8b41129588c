"""Data of the universal pipeline: `global_config` with its features, `datasets`, and the sizes of batches."""

import math
from collections.abc import Iterator

from stentor.config.convert.draft import Conversion, ForeignConfig, expanded, items_of, number
from stentor.config.document import Mistake, Node

_SAME_FEATURES = (
    "{num_mel_bins,frame_length,frame_shift,sampling_rate,preemph_coeff,window_type,dither,snip_edges,remove_dc_offset,"
    "low_freq,high_freq,num_ceps,cepstral_lifter,use_energy}"
)
_FEATURES = {"feature_type": "type", **{key: key for key in expanded(_SAME_FEATURES)}, "storage_path": "store"}
"""Features: theirs and ours. They stand in `global_config` or in its section `features`."""
_FIXED = {
    "features are Kaldi's, as lhotse makes them by default": (
        "{round_to_power_of_two,energy_floor,raw_energy,use_fft_mag,num_filters,torchaudio_compatible_mel_scale,"
        "norm_filters,use_log_fbank,use_power,htk_mode,htk_compat,blackman_coeff}"
    ),
    "vocal tracts are not warped": "{vtln_low,vtln_high}",
    "`prepare features --jobs N` makes features ahead; where they lie says `model.features.store`": (
        "{num_jobs,num_workers,torch_threads,storage_type,mix_eagerly,progress_bar,device,overwrite,batch_duration,"
        "debug_mel}"
    ),
    "a separate loader of features has no effect there: `data.workers`": (
        "dataloader.{num_workers,pin_memory,persistent_workers,prefetch_factor}"
    ),
}
"""Features without a counterpart, by the reason."""
_KALDI = {"use_log_fbank": True, "use_power": True, "htk_mode": False, "htk_compat": False}
"""Required values of features; other values are mistakes."""
_LOADING = {
    "features are computed on the fly, or read from `model.features.store`": (
        "{strategy,input_strategy.num_workers,input_strategy.executor_type,input_strategy.use_batch_extract,"
        "input_strategy.fault_tolerant,input_strategy.return_audio}"
    ),
    "batches are planned from lengths alone: `data.max_items`, `data.batch_tokens`, `data.buckets`": (
        "sampler.{type,num_buckets,shuffle,drop_last}"
    ),
    "workers are kept, and memory is pinned, where it helps": "dataloader.{pin_memory,persistent_workers}",
    "speakers are distinguished without enrolment": "{min,max}_enroll_len",
}
_MAPS = ("training.training_dataset_map", "training.validation.validation_dataset_map")
_SOURCES = ("corpus_dir", "output_dir", "force_download")
_CORPORA = {"voxceleb1": "voxceleb", "voxceleb2": "voxceleb"}
"""Corpora whose lhotse recipe has another name."""
_ENTRY = (
    "download_params.target_dir",
    "download_params.force_download",
    "process_params.corpus_dir",
    "process_params.output_dir",
)
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
    callbacks = 0

    def callback(self, kind: str) -> str:
        """Add a callback; returns its key."""
        key = f"callbacks.{self.callbacks}"
        self.callbacks += 1
        self.put(f"{key}.type", kind)
        return key


def convert_data(job: UniversalConversion) -> list[Mistake]:
    """The sections `data` and `model.features`. Returns what is wrong inside lists, which have no keys."""
    mistakes: list[Mistake] = []
    for key, value in _KALDI.items():
        node = job.values.get(name := f"global_config.features.{key}")
        if node is not None and node.value is not value:
            message = f"'{name}' must be {str(value).lower()}: there are no others here"
            mistakes.append(Mistake(node.place, message, name))
    seconds, rate = _features(job)
    _sources(job, mistakes)
    _batches(job, seconds, rate)
    return mistakes


def _features(job: UniversalConversion) -> tuple[float, float]:
    """Returns the length of an item in seconds and the positions that a second takes."""
    loading = "global_config.data_loading"
    if job.task == "language":
        of_data = (*_SOURCES, "random_seed")
        of_audio = [key for key in job.below("global_config") if key.split(".")[1] not in of_data]
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
    chunk, window = job.take(f"{loading}.chunk_size"), job.take("global_config.cut_window_seconds")
    seconds = 30.0
    if job.task == "diarize":
        seconds = number(chunk or window, "chunk_size", 20.0)
        job.put("task.chunk", chunk or window or seconds)
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
    stack, context = job.take(f"{loading}frame_stack"), job.take(f"{loading}context_size")
    inputs = job.values.get("model.encoder.input_dim") or job.values.get("model.global_config.input_dim")
    if stack is not None:
        given = [(f"{loading}context_size", context)]
        job.comment_out("Frames are joined by `frame_stack`, which is given:", given)
        return stack
    if context is not None:
        return Node(2 * int(number(context, f"{loading}context_size")) + 1, context.place)
    if inputs is None:
        return None
    features = job.made("model.features") or {}
    is_mfcc = features.get("type") == "mfcc"
    bins = features.get("num_ceps", 13) if is_mfcc else features.get("num_mel_bins", 80)
    size = number(inputs, "model.encoder.input_dim")
    if not isinstance(bins, int) or bins < 1 or size % bins:
        job.notes.append(f"input_dim: {size:g} is not a multiple of the {bins} values of a frame: set `stack`.")
        return None
    return Node(int(size) // bins, inputs.place)


def _sources(job: UniversalConversion, mistakes: list[Mistake]) -> None:
    listed = [_Entry(node, mistakes) for node in items_of(job.take("datasets"), "datasets")]
    entries = {entry.name: entry for entry in listed}
    shared = {key: job.take(f"global_config.{key}") for key in _SOURCES}
    train, held_out = (list(_mapped(job, key, entries, mistakes)) for key in _MAPS)
    splits = [str(node.plain()) for node in items_of(job.take("training.validation.splits"), "splits")]
    evaluated = splits or job.below("training.validation") or job.below("training.early_stopping")
    steps, items = job.take("training.validation.max_steps"), job.values.get("training.validation.batch_size")
    if not entries:
        job.notes.append("no `datasets` are given: data.train names a manifest, train.jsonl, that you have to make.")
        job.put("data.train.0", {"type": "jsonl", "path": "train.jsonl"})
        if evaluated:
            job.put("data.eval.dev", {"type": "jsonl", "path": "dev.jsonl"})
        job.comment_out("It limits `datasets`, which are not given:", [("training.validation.max_steps", steps)])
        return
    if not train:
        job.notes.append(
            "no splits are given: data.train and data.eval take `train` and `dev`; where a corpus calls its parts "
            "otherwise, the run says how."
        )
    for i, (name, split, ratio) in enumerate(train or [(name, "train", None) for name in entries]):
        entries[name].put(job, f"data.train.{i}", split, shared)
        job.put(f"data.train.{i}.repeat", ratio)
    if not held_out and (evaluated or train):
        held_out = [(name, split, None) for name in entries for split in splits or ["dev"]]
    for name, split, _ in held_out:
        key = f"data.eval.{split if len(entries) == 1 else f'{name}-{split}'}"
        entries[name].put(job, key, split, shared)
        if steps is not None:
            size = number(items, "training.validation.batch_size", 1)
            job.put(f"{key}.limit", int(number(steps, "training.validation.max_steps") * size), steps)
    for entry in entries.values():
        job.comment_out(
            f"Only of downloading {entry.name}, which `stentor prepare corpus` or `download: true` does:",
            [(f"datasets.{entry.name}.{key}", value) for key, value in entry.download],
        )


def _batches(job: UniversalConversion, seconds: float, rate: float) -> None:
    positions = math.ceil(seconds * rate)
    items, longest = job.take("training.batch_size"), job.take("training.eval_knobs.max_duration")
    if longest is None:
        job.put_batch("training.batch_size", items, 32, positions)
    else:
        number(items, "training.batch_size")
        room = number(longest, "training.eval_knobs.max_duration") * rate
        job.put("data.batch_tokens", max(math.ceil(room), positions), longest)
        job.comment_out("Batches are bounded by their seconds (max_duration):", [("training.batch_size", items)])
    held_out = job.take("training.validation.batch_size")
    if held_out is not None:
        room = number(held_out, "training.validation.batch_size") * positions
        job.put("data.eval_batch_tokens", math.ceil(room), held_out)
    loader = "global_config.data_loading.dataloader"
    for key, ours in (("num_workers", "data.workers"), ("prefetch_factor", "data.prefetch")):
        first, second = job.take(f"training.performance.{key}"), job.take(f"{loader}.{key}")
        job.put(ours, first or second)
        if first is not None and second is not None and first.value != second.value:
            job.comment_out("`training.performance` counts:", [(f"{loader}.{key}", second)])


class _Entry:
    """One entry of `datasets`."""

    def __init__(self, node: Node, mistakes: list[Mistake]):
        named = node if isinstance(node.value, dict) else Node({"name": node}, node.place)
        foreign = ForeignConfig(named, null_is_default=True)
        foreign.values = {key: value for key, value in foreign.values.items() if value.value != {}}
        foreign.known |= {"download_params", "process_params"}
        name = foreign.take("name")
        if name is None:
            mistakes.append(Mistake(node.place, "a data set needs a `name`, that of its lhotse recipe"))
        self.node = name or Node("?", node.place)
        self.name = str(self.node.plain())
        self.settings = {key: foreign.take(key) for key in _ENTRY}
        self.options = [(key.partition(".")[2], value) for key, value in foreign.take_below("process_params")]
        self.download = foreign.take_below("download_params")
        """Options that only concern downloading."""
        mistakes += foreign.unknown(f"datasets.{self.name}.", 0.6)

    def put(self, job: UniversalConversion, key: str, split: str, shared: dict[str, Node | None]) -> None:
        """Write a source of this corpus."""
        job.put(f"{key}.type", "corpus")
        job.put(f"{key}.name", _CORPORA.get(self.name, self.name), self.node)
        folder = self.settings["process_params.corpus_dir"] or self.settings["download_params.target_dir"]
        root = shared["corpus_dir"]
        job.put(f"{key}.from", folder or f"{'./data' if root is None else root.plain()}/{self.name}")
        job.put(f"{key}.to", self.settings["process_params.output_dir"] or shared["output_dir"])
        job.put(f"{key}.split", {"val": "dev"}.get(split, split))  # as lhotse's recipes name it
        download = self.settings["download_params.force_download"] or shared["force_download"]
        job.put(f"{key}.download", download if download is not None and download.value is not False else None)
        if job.task == "diarize":
            job.put(f"{key}.utterances", False)
        for option, value in self.options:
            job.put(f"{key}.options.{option}", value)


def _mapped(
    job: UniversalConversion, key: str, entries: dict[str, _Entry], mistakes: list[Mistake]
) -> Iterator[tuple[str, str, Node | None]]:
    """(data set, split, share of it) of a dataset map."""
    job.take(f"{key}.combine")  # what is listed together is mixed
    for node in items_of(job.take(f"{key}.splits"), f"{key}.splits"):
        part = ForeignConfig(node)
        name, split, ratio = (part.take(k) for k in ("dataset_name", "split_name", "subset_ratio"))
        if name is None or split is None:
            mistakes.append(Mistake(node.place, f"'{key}.splits' needs a dataset_name and a split_name in each entry"))
        elif name.value not in entries:
            known = ", ".join(entries) or "none"
            mistakes.append(Mistake(name.place, f"'{name.value}' is not one of the datasets: {known}"))
        else:
            yield str(name.value), str(split.plain()), None if ratio is None or ratio.value == 1 else ratio
        mistakes += part.unknown(f"{key}.splits.", 0.6)
