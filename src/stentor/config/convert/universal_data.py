"""Data of the universal pipeline: `global_config` with its features, `datasets`, and the sizes of batches."""

import math
from dataclasses import dataclass

from stentor.config.convert.draft import Draft, ForeignConfig, expanded, positive
from stentor.config.document import Mistake, Mistakes, Node

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
    "a loader beside the features does nothing there: `data.workers`": (
        "dataloader.{num_workers,pin_memory,persistent_workers,prefetch_factor}"
    ),
}
"""Features without a counterpart, by the reason."""
_KALDI = {"use_log_fbank": True, "use_power": True, "htk_mode": False, "htk_compat": False}
"""What features are here: another value is a mistake."""
_LOADING = {
    "features are made on the fly, or read where `model.features.store` names a place": (
        "{strategy,input_strategy.num_workers,input_strategy.executor_type,input_strategy.use_batch_extract,"
        "input_strategy.fault_tolerant,input_strategy.return_audio}"
    ),
    "batches are planned from lengths alone: `data.max_items`, `data.batch_tokens`, `data.buckets`": (
        "sampler.{type,num_buckets,shuffle,drop_last}"
    ),
    "workers are kept, and memory is pinned, where it helps": "dataloader.{pin_memory,persistent_workers}",
    "no speaker is enrolled: all are told apart at once": "{min,max}_enroll_len",
}
_MAPS = ("training.training_dataset_map", "training.validation.validation_dataset_map")
_SOURCES = ("corpus_dir", "output_dir", "force_download")
_CORPORA = {"voxceleb1": "voxceleb", "voxceleb2": "voxceleb"}
"""Corpora whose lhotse recipe has another name."""
_ENTRY = (
    "name",
    "download_params.target_dir",
    "download_params.force_download",
    "process_params.corpus_dir",
    "process_params.output_dir",
)
_TEXT = 256
"""Positions of a text, and frames a second times seconds of audio: what an item of a batch is counted as."""


@dataclass
class Conversion:
    """A conversion under way."""

    foreign: ForeignConfig
    draft: Draft
    task: str = "diarize"
    kind: str = "encoder"
    """Of the model."""
    labels: str = ""
    """Of the task `diarize`."""
    linear: bool = False
    """Whether any attention is linear."""
    callbacks: int = 0

    def callback(self, kind: str) -> str:
        """Add a callback; returns its key."""
        key = f"callbacks.{self.callbacks}"
        self.callbacks += 1
        self.draft.put(f"{key}.type", kind)
        return key


def convert_data(job: Conversion) -> list[Mistake]:
    """The sections `data` and `model.features`. Returns what is wrong inside lists, which have no keys."""
    mistakes: list[Mistake] = []
    for key, value in _KALDI.items():
        node = job.foreign.values.get(name := f"global_config.features.{key}")
        if node is not None and node.value is not value:
            message = f"'{name}' must be {str(value).lower()}: there are no others here"
            mistakes.append(Mistake(node.place, message, name))
    seconds, rate = _features(job)
    _sources(job, mistakes)
    _batches(job, seconds, rate)
    return mistakes


def _features(job: Conversion) -> tuple[float, float]:
    """Returns the length of an item in seconds and the positions that a second takes."""
    foreign, draft = job.foreign, job.draft
    loading = "global_config.data_loading"
    if job.task == "language":
        of_audio = [k for k in foreign.values if k.startswith("global_config.")]
        of_audio = [k for k in of_audio if k.split(".")[1] not in _SOURCES and k != "global_config.random_seed"]
        draft.comment_out("A language model hears nothing:", foreign.take_each(of_audio))
        return 1.0, float(_TEXT)
    for part in ("global_config.", "global_config.features."):
        draft.put_each(foreign, {part + theirs: f"model.features.{ours}" for theirs, ours in _FEATURES.items()})
        draft.comment_out_unsupported(foreign, _FIXED.items(), part)
    if job.task == "diarize" and any(key.startswith(f"{loading}.") for key in foreign.values):
        draft.put("model.features.normalize", "mean")  # theirs
    draft.put("model.features.stack", _stack(job, f"{loading}."))
    draft.put("model.features.subsample", foreign.take(f"{loading}.subsampling"))
    draft.comment_out_unsupported(foreign, _LOADING.items(), f"{loading}.")
    chunk, window = foreign.take(f"{loading}.chunk_size"), foreign.take("global_config.cut_window_seconds")
    seconds = 30.0
    if job.task == "diarize":
        seconds = positive(chunk or window, "chunk_size", 20.0)
        draft.put("task.chunk", chunk or window or seconds)
        window = window if chunk is not None else None
    else:
        draft.comment_out("Recordings are cut where their utterances end:", [(f"{loading}.chunk_size", chunk)])
    draft.comment_out("Recordings are cut for training alone:", [("global_config.cut_window_seconds", window)])
    section = draft.root.value["model"].value.get("features")
    features = {} if section is None else section.plain()
    shift, every = features.get("frame_shift", 0.01), features.get("subsample", 1)
    are_numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0 for v in (shift, every))
    return seconds, 1 / (shift * every) if are_numbers else 100.0  # a wrong value is an error when the file is checked


def _stack(job: Conversion, loading: str) -> Node | None:
    """How many frames are joined: by `frame_stack`, by `context_size` to either side, or as `input_dim` has it."""
    foreign = job.foreign
    stack, context = foreign.take(f"{loading}frame_stack"), foreign.take(f"{loading}context_size")
    inputs = foreign.values.get("model.encoder.input_dim") or foreign.values.get("model.global_config.input_dim")
    if stack is not None:
        given = [(f"{loading}context_size", context)]
        job.draft.comment_out("Frames are joined by `frame_stack`, which is given:", given)
        return stack
    if context is not None:
        return Node(2 * int(positive(context, f"{loading}context_size")) + 1, context.place)
    if inputs is None:
        return None
    features = job.draft.root.value["model"].value.get("features")
    bins = {} if features is None else features.plain()
    bins = bins.get("num_ceps", 13) if bins.get("type") == "mfcc" else bins.get("num_mel_bins", 80)
    size = positive(inputs, "model.encoder.input_dim")
    if not isinstance(bins, int) or bins < 1 or size % bins:
        job.draft.notes.append(f"input_dim: {size:g} is not a multiple of the {bins} values of a frame: set `stack`.")
        return None
    return Node(int(size) // bins, inputs.place)


def _sources(job: Conversion, mistakes: list[Mistake]) -> None:
    foreign, draft = job.foreign, job.draft
    listed = [_Entry(node, mistakes) for node in _items(foreign.take("datasets"), "datasets")]
    entries = {entry.name: entry for entry in listed}
    shared = {key: foreign.take(f"global_config.{key}") for key in _SOURCES}
    train, held_out = (_mapped(foreign, key, entries, mistakes) for key in _MAPS)
    splits = [str(node.plain()) for node in _items(foreign.take("training.validation.splits"), "splits")]
    sections = ("training.validation.", "training.early_stopping.")
    evaluated = splits or any(key.startswith(sections) for key in foreign.values)
    foreign.known.add("training.validation.max_steps")
    if not entries:
        draft.notes.append("no `datasets` are given: data.train names a manifest, train.jsonl, that you have to make.")
        draft.put("data.train.0", {"type": "jsonl", "path": "train.jsonl"})
        if evaluated:
            draft.put("data.eval.dev", {"type": "jsonl", "path": "dev.jsonl"})
        return
    if not train:
        draft.notes.append(
            "no splits are given: data.train and data.eval take `train` and `dev`; where a corpus calls its parts "
            "otherwise, the run says how."
        )
    for i, (name, split, ratio) in enumerate(train or [(name, "train", None) for name in entries]):
        entries[name].put(draft, f"data.train.{i}", split, shared, job.task)
        draft.put(f"data.train.{i}.repeat", ratio)
    if not held_out and (evaluated or train):
        held_out = [(name, split, None) for name in entries for split in splits or ["dev"]]
    steps, items = foreign.take("training.validation.max_steps"), foreign.values.get("training.validation.batch_size")
    for name, split, _ in held_out:
        key = f"data.eval.{split if len(entries) == 1 else f'{name}-{split}'}"
        entries[name].put(draft, key, split, shared, job.task)
        if steps is not None:
            size = positive(items, "training.validation.batch_size", 1)
            most = positive(steps, "training.validation.max_steps") * size
            draft.put(f"{key}.limit", Node(int(most), steps.place))
    for data_set in entries.values():
        data_set.comment(draft)


def _batches(job: Conversion, seconds: float, rate: float) -> None:
    foreign, draft = job.foreign, job.draft
    positions = math.ceil(seconds * rate)
    items, longest = foreign.take("training.batch_size"), foreign.take("training.eval_knobs.max_duration")
    count = int(positive(items, "training.batch_size", 32))
    if longest is None:
        # Room for a whole batch of the longest items, so that `max_items` alone decides, as the batch size does there.
        draft.put("data.max_items", items or count)
        draft.put("data.batch_tokens", count * positions)
    else:
        room = positive(longest, "training.eval_knobs.max_duration") * rate
        draft.put("data.batch_tokens", Node(max(math.ceil(room), positions), longest.place))
        draft.comment_out("Batches are bounded by their seconds (max_duration):", [("training.batch_size", items)])
    held_out = foreign.take("training.validation.batch_size")
    if held_out is not None:
        room = positive(held_out, "training.validation.batch_size") * positions
        draft.put("data.eval_batch_tokens", Node(math.ceil(room), held_out.place))
    loader = "global_config.data_loading.dataloader"
    for key, ours in (("num_workers", "data.workers"), ("prefetch_factor", "data.prefetch")):
        first, second = foreign.take(f"training.performance.{key}"), foreign.take(f"{loader}.{key}")
        draft.put(ours, first or second)
        if first is not None and second is not None and first.value != second.value:
            draft.comment_out("`training.performance` counts:", [(f"{loader}.{key}", second)])


class _Entry:
    """One entry of `datasets`."""

    def __init__(self, node: Node, mistakes: list[Mistake]):
        if not isinstance(node.value, dict):
            node = Node({"name": node}, node.place)
        self.foreign = ForeignConfig(node)
        for key in [key for key, value in self.foreign.values.items() if value.value is None or value.value == {}]:
            del self.foreign.values[key]
        name = self.foreign.take("name")
        if name is None:
            mistakes.append(Mistake(node.place, "a data set needs a `name`, that of its lhotse recipe"))
        self.node = name or Node("?", node.place)
        self.name = str(self.node.plain())
        self.foreign.known |= {"name", "download_params", "process_params"}
        self.settings = dict(self.foreign.take_each(_ENTRY[1:]))
        self.options = [(key.partition(".")[2], value) for key, value in self.foreign.take_below("process_params")]
        self.download = self.foreign.take_below("download_params")
        mistakes += self.foreign.unknown(f"datasets.{self.name}.", 0.6)

    def put(self, draft: Draft, key: str, split: str, shared: dict[str, Node | None], task: str) -> None:
        """Write a source of this corpus."""
        draft.put(f"{key}.type", "corpus")
        draft.put(f"{key}.name", Node(_CORPORA.get(self.name, self.name), self.node.place))
        folder = self.settings["process_params.corpus_dir"] or self.settings["download_params.target_dir"]
        root = shared["corpus_dir"]
        draft.put(f"{key}.from", folder or f"{'./data' if root is None else root.plain()}/{self.name}")
        draft.put(f"{key}.to", self.settings["process_params.output_dir"] or shared["output_dir"])
        draft.put(f"{key}.split", {"val": "dev"}.get(split, split))  # as lhotse's recipes name it
        download = self.settings["download_params.force_download"] or shared["force_download"]
        draft.put(f"{key}.download", download if download is not None and download.value is not False else None)
        if task == "diarize":
            draft.put(f"{key}.utterances", False)
        for option, value in self.options:
            draft.put(f"{key}.options.{option}", value)

    def comment(self, draft: Draft) -> None:
        """Keep what is about downloading alone."""
        draft.comment_out(
            f"Only of downloading {self.name}, which `stentor prepare corpus` or `download: true` does:",
            [(f"datasets.{self.name}.{key}", value) for key, value in self.download],
        )


def _mapped(
    foreign: ForeignConfig, key: str, entries: dict[str, _Entry], mistakes: list[Mistake]
) -> list[tuple[str, str, Node | None]]:
    """(data set, split, share of it) of a dataset map."""
    foreign.take(f"{key}.combine")  # what is listed together is mixed
    mapped = []
    for node in _items(foreign.take(f"{key}.splits"), f"{key}.splits"):
        part = ForeignConfig(node)
        name, split, ratio = (part.take(k) for k in ("dataset_name", "split_name", "subset_ratio"))
        if name is None or split is None:
            mistakes.append(Mistake(node.place, f"'{key}.splits' needs a dataset_name and a split_name in each entry"))
        elif name.value not in entries:
            known = ", ".join(entries) or "none"
            mistakes.append(Mistake(name.place, f"'{name.value}' is not one of the datasets: {known}"))
        else:
            is_all = ratio is None or ratio.value == 1
            mapped.append((str(name.value), str(split.plain()), None if is_all else ratio))
        mistakes += part.unknown(f"{key}.splits.", 0.6)
    return mapped


def _items(node: Node | None, key: str) -> list[Node]:
    if node is None:
        return []
    if not isinstance(node.value, list):
        raise Mistakes([Mistake(node.place, f"'{key}' must be a list")])
    return node.value
