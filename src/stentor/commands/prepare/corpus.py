"""`stentor prepare corpus`: manifests of known corpora."""

from typing import Any

from stentor.commands.prepare_options import CorpusOptions
from stentor.data.yaml_text import read_yaml
from stentor.dataloading.dataset_report import MAX_BAD
from stentor.dataloading.manifest import write_corpus
from stentor.errors import ConfigError, DataError
from stentor.pipeline.runner import first_of
from stentor.sources.corpus import Corpus


def prepare_corpus(options: CorpusOptions) -> None:
    """Write the manifests of a corpus to the folder `to`. Raises `DataError` when over 1 % of it is unusable."""
    recipe_options: dict[str, Any] = {}
    for option in options.option:
        key, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(f"--option {option}: write KEY=VALUE, such as --option languages=[en].")
        recipe_options[key] = read_yaml(value)
    corpus = Corpus(
        name=options.name,
        from_=options.source,
        to=options.to,
        split=options.split,
        download=options.download,
        utterances=not options.recordings,
        empty=options.empty,
        options=recipe_options,
    )
    bad = []
    for part in write_corpus(corpus, options.to):
        unusable = f", {len(part.unusable):,} unusable" if part.unusable else ""
        mixed = f", {part.mixed:,} mixed to audio/ from several files" if part.mixed else ""
        print(f"{part.path}: {part.records:,} records, {part.hours:.2f} hours{mixed}{unusable}", flush=True)
        if len(part.unusable) > MAX_BAD * (part.records + len(part.unusable)):
            bad.append(part)
    if bad:
        raise DataError(
            "More than 1 % of the corpus cannot be used: "
            + ", ".join(f"{len(p.unusable):,} of {p.records + len(p.unusable):,} in {p.path.stem}" for p in bad)
            + f". {first_of([u.message for p in bad for u in p.unusable])}"
        )
