"""`stentor prepare tokens`: audio to codec tokens in tar shards (OmniVoice's format), or to FLAC in such shards.

TO holds `shard-000000.tar` with one member for each sample, `shard-000000.jsonl` with their labels, `data.lst`,
`errors.jsonl`, `summary.json` and `settings.json`. Which sample goes where is decided from metadata, and a shard gets
its name when it is complete. What was done is in `tokens.part`, so that the same command resumes after a kill and ends
with the same bytes.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stentor.commands.prepare.tokens.plan import SampleGroup, ShardPlan, plan_shards
from stentor.commands.prepare.tokens.shards import Shard, ShardWriter
from stentor.commands.prepare.tokens.worker import TokensWorker, noisy_prompts, read_audio
from stentor.commands.prepare_options import TokensOptions
from stentor.config.load import parse_source
from stentor.data.atomic_write import atomic_path
from stentor.data.cut import UnusableRecord
from stentor.data.storage import is_remote
from stentor.errors import AudioError, ConfigError, DataError
from stentor.models.codecs.base import Codec, at_peak, find, open_codec
from stentor.pipeline.executor import device_names, make_executor
from stentor.pipeline.journal import Journal, remove_journal, write_json, write_jsonl, write_lines
from stentor.pipeline.runner import Pipeline, Stop, format_table, refuse_rejects
from stentor.sources.base import source_notes
from stentor.text.languages import known_code

RAW = "none"
"""As --codec: no codec, audio is packed as it is."""
FITTED_ON = 3600.0
"""Seconds of audio that a codec is fitted on."""


def prepare_tokens(options: TokensOptions) -> None:
    """Write the shards, or resume where a killed command stopped. Raises ConfigError for options that do not go
    together and for a folder with shards of other settings, `Stopped` at a signal, and DataError when nothing could be
    kept or over 1 % of the records cannot be used (the shards are written all the same)."""
    _check_options(options)
    with Stop(lambda: f"what is done is in {options.to}") as stop:
        source = parse_source(options.data)
        if source.streaming:
            why = "is read as a stream; shards are planned over all records: `stream=false`"
            raise ConfigError(f"{options.data} {why}.")
        plan = plan_shards(source.cuts(), options)
        for note in source_notes(source, "data"):
            print(note, file=sys.stderr, flush=True)
        settings = _settings(options, plan)
        _check_settings(options.to, settings)
        if (options.to / "summary.json").is_file():
            print(f"{options.to} is complete; delete it to make it again.", flush=True)
            remove_journal(options.to / "tokens.part")
            return
        codec = None
        if options.codec != RAW and plan.shards:
            if is_fitted_here(options):
                _check_settings(options.to, settings, write=True)  # the codec belongs to these records
            codec = ready_codec(options, plan)
            settings["codec_found"] = codec_facts(codec)
        _check_settings(options.to, settings, write=True)
        devices = [] if codec is None else device_names(options.device) if options.ray is None else [options.device]
        journal = Journal(options.to / "tokens.part", settings)
        Pipeline(
            worker=TokensWorker(options, codec),
            writer=ShardWriter(options.to, plan.shards, journal),
            executor=make_executor(options, devices),
            title="encoding",
            saved=stop.saved,
            finish_groups=True,
        ).run([group for shard in plan.shards for group in shard])
        conclude(plan, options, journal)


def _settings(options: TokensOptions, plan: ShardPlan) -> dict[str, Any]:
    """Settings that the bytes of the shards depend on. A codec's folder is named absolutely, wherever the command
    runs."""
    noisy = noisy_prompts(options)
    return {
        "records": plan.fingerprint,
        "codec": str(Path(options.codec).resolve()) if Path(options.codec).is_dir() else options.codec,
        "samples_per_shard": options.samples_per_shard,
        "min_shards": options.min_shards,
        "min_seconds": options.min_seconds,
        "max_seconds": options.max_seconds,
        "seed": options.seed,
        "noisy_prompts": noisy and noisy.as_dict(),
        "rate": options.rate,
    }


def _check_options(options: TokensOptions) -> None:
    noisy = noisy_prompts(options)
    if options.codec == RAW and noisy is not None:
        raise ConfigError("Noisy prompts are counted in frames of a codec: name one with --codec, or leave them out.")
    if options.codec != RAW and options.rate is not None:
        raise ConfigError(f"--rate is for raw audio (--codec {RAW}); the codec {options.codec} has a rate of its own.")
    shortest, longest = options.min_seconds, options.max_seconds
    if shortest is not None and longest is not None and shortest > longest:
        raise ConfigError(f"--min-seconds {shortest:g} is more than --max-seconds {longest:g}: nothing would be left.")
    if any(c.isspace() for c in str(options.to.absolute())):
        why = "data.lst separates paths by spaces, so the folder's path must have none"
        raise ConfigError(f"--to {options.to.absolute()}: {why}.")
    if noisy is not None:
        noisy.check()


def _check_settings(to: Path, settings: dict[str, Any], write: bool = False) -> None:
    """Refuse a folder with shards of other settings; with `write`, store the settings in the folder."""
    path = to / "settings.json"
    before: dict[str, Any] = {}
    if path.is_file():
        before = json.loads(path.read_text("utf-8"))
        changes = [f"{k} was {before[k]!r} and is {v!r}" for k, v in settings.items() if k in before and before[k] != v]
        if changes:
            raise ConfigError(
                f"{to} holds shards of other settings ({'; '.join(changes)}): give another folder as --to, or delete "
                "it."
            )
    elif to.is_dir() and next(to.glob("shard-*"), None) is not None:
        raise ConfigError(f"{to} holds shards that this command did not make: give another folder as --to.")
    if write and before != settings:
        to.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)


def is_fitted_here(options: TokensOptions) -> bool:
    """Whether --codec names a kind that is fitted on the data, and no folder."""
    kind = Codec.choices().get(options.codec)
    return kind is not None and issubclass(kind, Codec) and kind.fits and not Path(options.codec).is_dir()


def ready_codec(options: TokensOptions, plan: ShardPlan) -> str:
    """The name for `open_codec`: --codec itself, or TO/codec, which is fitted on the data unless it is there. Raises
    ConfigError, and DataError when no audio could be read."""
    if not is_fitted_here(options):
        return options.codec
    folder = options.to / "codec"
    if not (folder / "config.json").is_file():
        codec = Codec.choices()[options.codec].model_validate({"type": options.codec})
        assert isinstance(codec, Codec)
        print(f"{options.codec} is fitted on the data, into {folder}.", flush=True)
        fitted = codec.fit(_audios(plan, codec.rate), options.seed)
        with atomic_path(folder) as part:
            fitted.save(part)
    return str(folder)


def _audios(plan: ShardPlan, rate: int) -> Iterator[np.ndarray]:
    """The first hour of the shards, as it will be encoded; what cannot be read is counted later."""
    seconds = 0.0
    for shard in plan.shards:
        for group in shard:
            for _, cut in group.samples:
                if seconds > FITTED_ON:
                    return
                try:
                    yield at_peak(read_audio(cut, rate))
                except AudioError:
                    continue
                seconds += cut.duration


def codec_facts(name: str) -> dict[str, Any]:
    """Format of the codec, of a folder with a digest of its files. Raises ConfigError when there is none."""
    codec = open_codec(name)
    codec.require_tokens()
    facts = {"type": codec.type, "sample_rate": codec.sample_rate, "frame_rate": codec.frame_rate}
    facts |= {"codebooks": codec.codebooks, "vocabulary": codec.vocabulary}
    if is_remote(name) or Path(name).is_dir():
        digest = hashlib.sha256()
        for file in sorted(find(name).iterdir()):
            if file.suffix in (".json", ".safetensors"):
                digest.update(file.name.encode() + file.read_bytes())
        facts["sha256"] = digest.hexdigest()
    return facts


def conclude(plan: ShardPlan, options: TokensOptions, journal: Journal) -> None:
    """Write the lists and count on the screen. Raises DataError when nothing could be kept or over 1 % of the records
    cannot be used."""
    shards = [_facts(shard, journal) for shard in plan.shards]
    rejects = [*plan.rejects, *(UnusableRecord(**error) for facts in shards for error in facts["errors"])]
    dropped = Counter(reject.reason for reject in rejects).most_common()
    lines = []
    for facts in shards:
        shard = Shard(options.to.absolute(), facts["shard"])
        if facts["samples"]:
            lines.append(f"{shard.tar} {shard.labels} {facts['samples']} {facts['seconds']:.3f}\n")
    languages: Counter[str] = sum((facts["languages"] for facts in shards), Counter())
    samples, hours = (sum(facts[key] for facts in shards) for key in ("samples", "seconds"))
    hours /= 3600
    summary = {
        "data": options.data,
        "codec": options.codec,
        "records": plan.records,
        "shards": len(lines),
        "samples": samples,
        "hours": round(hours, 4),
        "languages": {language: round(seconds / 3600, 6) for language, seconds in languages.most_common()},
        "tokens": sum(facts["tokens"] for facts in shards),
        "dropped": dict(dropped),
    }
    write_lines(options.to / "data.lst", lines)
    write_jsonl(options.to / "errors.jsonl", [vars(reject) for reject in rejects])
    write_json(options.to / "summary.json", summary)  # the last one: with it the folder is complete
    remove_journal(journal.path)
    rows = [("kept", samples, f"{hours:.2f} hours in {len(lines):,} shards")]
    print(format_table([*rows, *((f"dropped: {reason}", n, "") for reason, n in dropped)]), flush=True)
    print(f"written: {options.to / 'data.lst'} and {options.to / 'errors.jsonl'}", flush=True)
    limits = {"too_short": options.min_seconds, "too_long": options.max_seconds}
    unusable = [reject.message for reject in rejects if limits.get(reject.reason) is None]
    refuse_rejects(unusable, samples + len(rejects))
    if not samples:
        raise DataError(f"No record could be used; {options.to / 'errors.jsonl'} says why.")


def _facts(shard: Sequence[SampleGroup], journal: Journal) -> dict[str, Any]:
    """Facts of a shard: its number, samples, seconds, tokens, the seconds of each language ("" where none is named)
    and errors."""
    outcomes = list(journal.lines(group.id for group in shard))
    labels = [label for outcome in outcomes for label in outcome["labels"]]
    languages: Counter[str] = Counter()
    for label in labels:
        language = label.get("language")
        languages[known_code(language) if language else ""] += label["audio_duration"]
    return {
        "shard": shard[0].shard,
        "samples": len(labels),
        "seconds": round(sum(label["audio_duration"] for label in labels), 3),
        "tokens": sum(label.get("num_tokens", 0) for label in labels),
        "languages": languages,
        "errors": [error for outcome in outcomes for error in outcome["errors"]],
    }
