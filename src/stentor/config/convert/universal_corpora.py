"""Corpora of the universal pipeline: `datasets` with their parameters, and the splits to train and to evaluate on."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stentor.config.convert.draft import ForeignConfig
from stentor.config.convert.universal_data import UniversalConversion
from stentor.config.document import Mistake, Node
from stentor.errors import ConfigError
from stentor.sources.known_corpora import KNOWN, known_name
from stentor.sources.lhotse_recipe import names, recipe

_MAPS = ("training.training_dataset_map", "training.validation.validation_dataset_map")
_SOURCES = ("corpus_dir", "output_dir", "force_download")
_CORPORA = {"voxceleb1": "voxceleb", "voxceleb2": "voxceleb"}
"""Corpora with another name here."""
_SAME = {"val": "dev"}
"""Splits with another name in lhotse's recipes."""
_ALL_PARTS = ("auto", "all")
_EVALUATED = ("dev", "val", "cv")
_TESTED = ("test", "eval")
_FOLDERS = ("process_params.corpus_dir", "download_params.target_dir", "process_params.output_dir")


class Split(NamedTuple):
    """A split of a data set, and the share of it that is used."""

    name: str
    split: str
    ratio: Node | None = None


def convert_sources(job: UniversalConversion) -> None:
    """The sections `data.train`, `data.eval` and `data.test`."""
    datasets = {entry.name: entry for entry in _datasets(job)}
    train, held_out = (list(_mapped(job, key, datasets)) for key in _MAPS)
    given = [str(node.plain()) for node in job.take_items("training.validation.splits")]
    evaluated = bool(given or train or job.below("training.validation") or job.below("training.early_stopping"))
    limit = int(job.number("training.validation.max_steps") * job.number("training.validation.batch_size"))
    steps = job.take("training.validation.max_steps")
    if not datasets:
        job.notes.append("no `datasets` are given: data.train names a manifest, train.jsonl, that you have to make.")
        job.put("data.train.0", {"type": "jsonl", "path": "train.jsonl"})
        if evaluated:
            job.put("data.eval.dev", {"type": "jsonl", "path": "dev.jsonl"})
        job.comment_out("It limits `datasets`, which are not given:", [("training.validation.max_steps", steps)])
        return
    parts = [Split(name, part) for name, data in datasets.items() for part in data.parts] if not train else []
    unnamed = [name for name, data in datasets.items() if not data.parts] if not train else []
    if unnamed:
        job.notes.append(
            f"no splits of {', '.join(unnamed)} are given: data.train and data.eval take `train` and `dev`; where a "
            "corpus calls its parts otherwise, the run says how."
        )
    train = train or [p for p in parts if not p.split.startswith((*_EVALUATED, *_TESTED))]
    train += [Split(name, "train") for name in unnamed]
    held_out = held_out or [part for part in parts if part.split.startswith(_EVALUATED)]
    for part in parts:
        if part.split.startswith(_TESTED):
            datasets[part.name].put(job, f"data.test.{_set(part, datasets)}", part.split)
    for i, part in enumerate(train):
        datasets[part.name].put(job, f"data.train.{i}", part.split)
        job.put(f"data.train.{i}.repeat", part.ratio)
    if not held_out and evaluated:
        held_out = [Split(name, split) for name in datasets for split in given or ["dev"]]
    for part in held_out:
        key = f"data.eval.{_set(part, datasets)}"
        datasets[part.name].put(job, key, part.split)
        job.put(f"{key}.limit", None if steps is None else limit, steps)
    for data in datasets.values():
        data.leave_out(job)


def _set(part: Split, datasets: dict[str, "_DataSet"]) -> str:
    """The name of an evaluation set."""
    return part.split if len(datasets) == 1 else f"{part.name}-{part.split}"


def _datasets(job: UniversalConversion) -> Iterator["_DataSet"]:
    """The entries of `datasets`; what `global_config` says for all of them is filled in."""
    shared = {key: job.take(f"global_config.{key}") for key in _SOURCES}
    everywhere = [*job.take_below("global_config.download_params"), *job.take_below("global_config.process_params")]
    for node in job.take_items("datasets"):
        foreign = ForeignConfig(node if isinstance(node.value, dict) else Node({"name": node}, node.place), True)
        foreign.values = {key: value for key, value in foreign.values.items() if value.value != {}}
        foreign.known |= {"download_params", "process_params"}
        name = foreign.take("name")
        if name is None:
            job.mistakes.append(Mistake(node.place, "a data set needs a `name`, that of its lhotse recipe"))
            name = Node("?", node.place)
        for key, value in everywhere:
            foreign.values.setdefault(key.removeprefix("global_config."), value)
        yield _DataSet(name, foreign, shared)
        job.mistakes += foreign.unknown(f"datasets.{name.plain()}.", 0.6)


class _DataSet:
    """One entry of `datasets`."""

    def __init__(self, name: Node, foreign: ForeignConfig, shared: dict[str, Node | None]):
        self.node, self.name = name, str(name.plain())
        self.ours = known_name(_CORPORA.get(self.name, self.name), names())
        corpus, target, to = map(foreign.take, _FOLDERS)
        self.to = to or shared["output_dir"]
        root = shared["corpus_dir"]
        self.folder = corpus or target or Node(f"{'./data' if root is None else root.plain()}/{self.name}", name.place)
        self.force = foreign.take("download_params.force_download") or shared["force_download"]
        self.manifests = foreign.take("manifest_dir")
        self.download = foreign.take_below("download_params")
        """Options that only concern downloading."""
        self.options = {key.partition(".")[2]: value for key, value in foreign.take_below("process_params")}
        wanted = self.options.get("dataset_parts") or dict(self.download).get("download_params.dataset_parts")
        listed = [] if wanted is None else wanted.plain() if isinstance(wanted.value, list) else [wanted.value]
        self.parts = [str(part) for part in listed if part not in _ALL_PARTS and self.ours != "ego4d"]
        """Parts of the corpus that are asked for; none: all."""
        if self.ours == "libriheavy_mix":  # which has a part for each number of speakers
            counts = self.options.get("speaker_counts") or Node([1, 2, 3, 4], name.place)
            numbers = counts.plain() if isinstance(counts.value, list) else [counts.value]
            self.parts = [f"{part}_{number}spk" for part in self.parts for number in numbers]
        self.known = _options_of("prepare", self.ours)
        """Options of the lhotse recipe; None without a recipe."""
        self.made_before = self.known is None and self.ours not in KNOWN
        """Whether there is no such corpus: manifests that were made before, as for simulated mixtures."""

    def put(self, job: UniversalConversion, key: str, split: str) -> None:
        """Write a source of this corpus."""
        if self.made_before:
            job.put_each(key, {"type": "manifest", "path": self._manifest("cuts", split)}, self.node)
            cuts, recordings, spoken = (self._manifest(k, "SPLIT") for k in ("cuts", "recordings", "supervisions"))
            job.notes.append(
                f"there is no corpus {self.name}: its cuts are read. Where there are only recordings and supervisions, "
                f"join those of each split: lhotse cut simple -r {recordings} -s {spoken} {cuts}"
            )
            return
        renamed = self.options.get(f"splits.{split}") or self.options.get(f"splits.{_SAME.get(split, split)}")
        split = _SAME.get(split, split) if renamed is None else str(renamed.plain()).replace(".", "_")
        source = {"type": "corpus", "name": self.ours, "from": self.folder, "to": self.to, "split": split}
        job.put_each(key, source, self.node)
        if self._is_downloaded():
            job.put(f"{key}.download", True, self.force)
            job.notes.append(f"{self.name} is downloaded to {self.folder.plain()} where it is missing, as theirs does.")
        if job.task == "diarize":
            job.put(f"{key}.utterances", False)
        for option, value in self.options.items():
            if option in (self.known or ()) and option != "dataset_parts":
                job.put(f"{key}.options.{option}", value)

    def _manifest(self, kind: str, split: str) -> str:
        """A file of theirs for a name without a recipe."""
        root = "./manifests" if self.to is None else self.to.plain()
        folder = f"{root}/{self.name}" if self.manifests is None else self.manifests.plain()
        return f"{folder}/{self.name}_{kind}_{split}.jsonl.gz"

    def _is_downloaded(self) -> bool:
        """Whether theirs would download the corpus: where its folder is missing, or if it is forced to."""
        forced = self.force is not None and self.force.value is not False
        missing = not Path(str(self.folder.plain())).is_dir()
        return (forced or missing) and _options_of("download", self.ours) is not None

    def leave_out(self, job: UniversalConversion) -> None:
        """Write what no source has a key for as comments."""
        prefix = f"datasets.{self.name}"
        title = f"Only of downloading {self.name}, which `download: true` does:"
        if _options_of("download", self.ours) is None:
            title = f"Only of downloading {self.name}; get it from its publishers:"
        job.comment_out(title, [(f"{prefix}.{key}", value) for key, value in self.download])
        of_parts = ("dataset_parts", "splits", "speaker_counts")
        left = [(k, v) for k, v in self.options.items() if k not in (self.known or ()) or k in of_parts]
        for title, are_parts in (("Parts are named by `split`:", True), (f"{self.name} is read without it:", False)):
            values = [
                (f"{prefix}.process_params.{k}", v) for k, v in left if (k.split(".")[0] in of_parts) == are_parts
            ]
            job.comment_out(title, values)


def _options_of(verb: str, name: str) -> set[str] | None:
    """Options of lhotse's recipe to `prepare` or `download` a corpus; None if there is none."""
    try:
        return set(inspect.signature(recipe(verb, name)).parameters)
    except ConfigError:
        return None


def _mapped(job: UniversalConversion, key: str, datasets: dict[str, _DataSet]) -> Iterator[Split]:
    """The entries of a dataset map."""
    job.take(f"{key}.combine")  # what is listed together is mixed
    for node in job.take_items(f"{key}.splits"):
        part = ForeignConfig(node)
        name, split, ratio = (part.take(k) for k in ("dataset_name", "split_name", "subset_ratio"))
        if name is None or split is None:
            needs = f"'{key}.splits' needs a dataset_name and a split_name in each entry"
            job.mistakes.append(Mistake(node.place, needs))
        elif name.value not in datasets:
            known = ", ".join(datasets) or "none"
            job.mistakes.append(Mistake(name.place, f"'{name.value}' is not one of the datasets: {known}"))
        else:
            yield Split(str(name.value), str(split.plain()), None if ratio is None or ratio.value == 1 else ratio)
        job.mistakes += part.unknown(f"{key}.splits.", 0.6)
