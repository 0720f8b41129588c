"""`stentor prepare tokens`: audio to codec tokens in tar shards (OmniVoice's format), or to FLAC in such shards.

TO holds `shard-000000.tar` with one member for each sample, `shard-000000.jsonl` with their labels, `data.lst`,
`errors.jsonl`, `summary.json` and `settings.json`. Which sample goes where is decided from metadata, and a shard gets
its name when it is whole. What was done is in `tokens.part`, so that the same command goes on after a kill and ends
with the same bytes. Several machines take turns with the shards; each leaves `machine-0-of-4.json`, and the last one
writes the lists.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.commands.prepare.tokens.noisy import NoisyPrompts
from stentor.errors import ConfigError

RAW = "none"
"""As --codec: no codec, audio is packed as it is."""
RAW_RATE = 24000
"""Hz of audio that is packed as it is, unless told otherwise."""


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    data: str
    to: Path
    codec: str
    jobs: int | None = None
    """Null: one for each device."""
    samples_per_shard: int = 1000
    min_shards: int = 32
    machines: int = 1
    machine: int = 0
    min_seconds: float | None = None
    max_seconds: float | None = None
    device: str = "auto"
    seed: int = 0
    noisy: NoisyPrompts | None = None
    rate: int | None = None
    plugins: tuple[Path, ...] = ()

    @property
    def journal(self) -> Path:
        """What was done so far."""
        return self.to / ("tokens.part" if self.machines == 1 else f"machine-{self.machine}-of-{self.machines}.part")


def prepare_tokens(request: Request) -> None:
    """Write the shards, or go on where a killed command stopped.

    Raises ConfigError for options that do not go together and for a folder with shards of other settings, `Stopped` at
    a signal, and DataError when nothing could be kept or over 1 % of the records cannot be used (the shards are
    written all the same).
    """
    from stentor.commands.prepare.tokens.lists import conclude, merge, share_file
    from stentor.commands.prepare.tokens.make import make_shards
    from stentor.commands.prepare.tokens.plan import plan
    from stentor.commands.prepare.tokens.stop import Stop
    from stentor.config.load import parse_source

    _check(request)
    with Stop(f"what is done is in {request.to}") as stop:
        source = parse_source(request.data)
        if source.streaming:
            raise ConfigError(
                f"{request.data} is read as a stream; shards are planned over all records: `stream=false`."
            )
        planned = plan(list(source.cuts()), request)
        settings = {
            "records": planned.fingerprint,
            "codec": _codec(request),
            "samples_per_shard": request.samples_per_shard,
            "min_shards": request.min_shards,
            "machines": request.machines,
            "min_seconds": request.min_seconds,
            "max_seconds": request.max_seconds,
            "seed": request.seed,
            "noisy_prompts": request.noisy and request.noisy.as_dict(),
            "rate": request.rate,
        }
        _hold(request.to, settings)
        if share_file(request, request.machine).is_file():
            print(f"{request.to} is complete; delete it to make it anew.", flush=True)
            request.journal.unlink(missing_ok=True)
            if request.machines > 1:
                merge(planned, request)
            return
        codec = None
        if request.codec != RAW and planned.shards:
            from stentor.commands.prepare.tokens.codec import facts, is_fitted_here, ready

            if is_fitted_here(request):
                _hold(request.to, settings, write=True)  # the codec belongs to these records
            codec = ready(request, planned)
            settings["codec_found"] = facts(codec)
        _hold(request.to, settings, write=True)
        make_shards(planned, request, codec, settings, stop)
        conclude(planned, request, settings)


def _codec(request: Request) -> str:
    """The codec's name, of a folder wherever the command is run from."""
    return str(Path(request.codec).resolve()) if Path(request.codec).is_dir() else request.codec


def _check(request: Request) -> None:
    if request.codec == RAW and request.noisy is not None:
        raise ConfigError("Noisy prompts are counted in frames of a codec: name one with --codec, or leave them out.")
    if request.codec != RAW and request.rate is not None:
        raise ConfigError(f"--rate is for raw audio (--codec {RAW}); the codec {request.codec} has a rate of its own.")
    if not request.machine < request.machines:
        raise ConfigError(
            f"--machine-index {request.machine}: with --num-machines {request.machines} they are 0 to "
            f"{request.machines - 1}."
        )
    least, most = request.min_seconds, request.max_seconds
    if least is not None and most is not None and least > most:
        raise ConfigError(f"--min-seconds {least:g} is more than --max-seconds {most:g}: nothing would be left.")
    if any(c.isspace() for c in str(request.to.absolute())):
        raise ConfigError(
            f"--to {request.to.absolute()}: data.lst separates paths by spaces, so the folder's path must have none."
        )
    if request.noisy is not None:
        request.noisy.check()


def _hold(to: Path, settings: dict[str, Any], write: bool = False) -> None:
    """Refuse a folder with shards of other settings; with `write`, say in the folder which they are."""
    from stentor.commands.prepare.words.journal import replace

    file = to / "settings.json"
    before: dict[str, Any] = {}
    if file.is_file():
        before = json.loads(file.read_text("utf-8"))
        other = [f"{k} was {before[k]!r} and is {v!r}" for k, v in settings.items() if k in before and before[k] != v]
        if other:
            raise ConfigError(
                f"{to} holds shards of other settings ({'; '.join(other)}): give another folder as --to, or delete it."
            )
    elif to.is_dir() and next(to.glob("shard-*"), None) is not None:
        raise ConfigError(f"{to} holds shards that this command did not make: give another folder as --to.")
    if write and before != settings:
        to.mkdir(parents=True, exist_ok=True)
        replace(file, json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
