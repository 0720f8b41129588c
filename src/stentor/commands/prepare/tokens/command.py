"""`stentor prepare tokens`: audio to codec tokens in tar shards (OmniVoice's format), or to FLAC in such shards.

TO holds `shard-000000.tar` with one member for each sample, `shard-000000.jsonl` with their labels, `data.lst`,
`errors.jsonl`, `summary.json` and `settings.json`. Which sample goes where is decided from metadata, and a shard gets
its name when it is complete. What was done is in `tokens.part`, so that the same command goes on after a kill and ends
with the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.commands.prepare.tokens.codec import codec_facts, is_fitted_here, ready_codec
from stentor.commands.prepare.tokens.lists import conclude
from stentor.commands.prepare.tokens.noisy import noisy_prompts
from stentor.commands.prepare.tokens.plan import ShardPlan, plan_shards
from stentor.commands.prepare.tokens.shards import ShardWriter
from stentor.commands.prepare.tokens.worker import TokensWorker
from stentor.config.load import parse_source
from stentor.errors import ConfigError
from stentor.pipeline.executor import device_names, make_executor
from stentor.pipeline.journal import Journal, remove_journal, write_json
from stentor.pipeline.runner import Pipeline, Stop

if TYPE_CHECKING:
    from stentor.commands.prepare_options import TokensOptions

RAW = "none"
"""As --codec: no codec, audio is packed as it is."""


def prepare_tokens(options: TokensOptions) -> None:
    """Write the shards, or go on where a killed command stopped. Raises ConfigError for options that do not go together
    and for a folder with shards of other settings, `Stopped` at a signal, and DataError when nothing could be kept or
    over 1 % of the records cannot be used (the shards are written all the same)."""
    _check_options(options)
    with Stop(lambda: f"what is done is in {options.to}") as stop:
        source = parse_source(options.data)
        if source.streaming:
            why = "is read as a stream; shards are planned over all records: `stream=false`"
            raise ConfigError(f"{options.data} {why}.")
        plan = plan_shards(source.cuts(), options)
        settings = _settings(options, plan)
        _check_settings(options.to, settings)
        if (options.to / "summary.json").is_file():
            print(f"{options.to} is complete; delete it to make it anew.", flush=True)
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
    """What the bytes of the shards depend on. A codec's folder is named absolutely, wherever the command runs."""
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
