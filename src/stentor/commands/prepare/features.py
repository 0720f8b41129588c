"""`stentor prepare features`: the features of a data set, stored ahead for training (`model.features.store`)."""

from collections.abc import Sequence

from stentor.commands.prepare_options import FeaturesOptions
from stentor.config.load import load, parse_source
from stentor.data.cut import Cut, UnusableRecord
from stentor.data.record_table import RecordTable, Selection
from stentor.dataloading.dataset import unlimited
from stentor.dataloading.train_dataset import ListedDataset
from stentor.errors import AudioError, ConfigError, DataError
from stentor.models.encoders.features import Features
from stentor.models.transformer.config import Transformer
from stentor.models.transformer.feature_cache import FeatureStore
from stentor.pipeline.executor import make_executor
from stentor.pipeline.runner import Pipeline, Writer, print_reasons, refuse_rejects, reject, unfinished
from stentor.pipeline.worker import Worker

GROUP_ITEMS = 8
"""Records that a process takes at a time."""


def prepare_features(options: FeaturesOptions) -> None:
    """Fill the folder, or resume where a killed command stopped. Raises ConfigError for options that do not go together
    and for a folder with features of other settings, `Stopped` at a signal, and DataError when over 1 % of the records
    cannot be used (the others are stored all the same)."""
    features, cuts = _features_and_cuts(options)
    store = FeatureStore(options.to.expanduser(), features, features.store_bits)
    writer = StoreWriter(store)
    Pipeline(
        worker=FeaturesWorker(store, features),
        writer=writer,
        # A fresh process would import lhotse and torch again, and generate again the speech of the built-in voice.
        executor=make_executor(options, fork=True),
        title="features",
        saved=lambda: f"what is done is in {store.folder}",
        resuming="{done:,} of {total:,} {unit} were stored before.",
    ).run([cuts[i : i + GROUP_ITEMS] for i in range(0, len(cuts), GROUP_ITEMS)])
    seconds = sum(c.duration for c in cuts if not isinstance(c, UnusableRecord))
    size = sum(file.stat().st_size for file in store.folder.iterdir())
    print(
        f"{store.folder}: features of {len(cuts) - len(writer.rejects):,} records ({seconds / 3600:.2f} h), "
        f"{size / 1e6:,.1f} MB. Train with `model.features.store: {options.to}`.",
        flush=True,
    )
    print_reasons(writer.rejects)
    refuse_rejects([reject.message for reject in writer.rejects], len(cuts))


def _features_and_cuts(options: FeaturesOptions) -> tuple[Features, RecordTable[Cut | UnusableRecord]]:
    """The settings of the features, and the records: of the data, or those that the run of `--config` trains on."""
    if options.config is None:
        if options.data is None:
            raise ConfigError("Name the data whose features are wanted, or a run with --config.")
        features = load(None, options.option, Features).config
        assert isinstance(features, Features)
        cuts: RecordTable[Cut | UnusableRecord] = RecordTable(parse_source(options.data).cuts())
    else:
        config = load(options.config, [f"model.features.{option}" for option in options.option]).config
        family = config.model
        if not isinstance(family, Transformer) or family.ssl is not None or family.kind == "decoder":
            raise ConfigError(f"{options.config}: its model reads no features that could be stored (see `model`).")
        features = family.features
        data = config.data
        if options.data is not None:
            source = parse_source(options.data)
            data = data.model_copy(update={"train": [source], "replay": None, "eval": {}, "test": {}})
        if any(source.streaming for source in data.train):
            raise ConfigError("The data is a stream of unknown length: its features cannot be stored ahead.")
        task = config.task
        pieces = task.training_segments if task.any_length else None
        data = data if pieces is None else unlimited(data)
        cuts = RecordTable(ListedDataset(data, config.train.seed, task.drop_reason, print, pieces).cuts())
    if not cuts:
        raise DataError("There are no records.")
    return features, cuts


class FeaturesWorker(Worker):
    """Stores the features of cuts, where they are not stored yet; each process adds files of its own to the store."""

    def __init__(self, store: FeatureStore, features: Features):
        self.store, self.features = store, features

    def process(self, group: Sequence[Cut | UnusableRecord]) -> tuple[list[None], list[UnusableRecord]]:
        rejects = []
        for cut in group:
            if isinstance(cut, UnusableRecord):
                rejects.append(cut)
                continue
            try:
                self.store.get(cut, self.features.raw)
            except AudioError as error:
                rejects.append(reject(cut, error))
        return [], rejects


class StoreWriter(Writer):
    """Says which records are stored; the workers have written the features themselves."""

    def __init__(self, store: FeatureStore):
        self.store = store
        self.rejects: list[UnusableRecord] = []

    def remaining(self, groups: Sequence[Selection[Cut | UnusableRecord]]) -> list[Selection[Cut | UnusableRecord]]:
        return unfinished(groups, lambda cut: not isinstance(cut, UnusableRecord) and self.store.has(cut))

    def write(self, group: Selection[Cut | UnusableRecord], outputs: list[None], rejects: list[UnusableRecord]) -> None:
        self.rejects += rejects
