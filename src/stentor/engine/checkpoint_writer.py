"""Checkpoint writer: copies what a checkpoint holds, writes it and makes it appear during training.

All ranks start a write together. In the background each one copies its tensors to the host, writes, hashes and flushes
the files; the main rank then assembles the export and renames the folder. They communicate on a separate process group.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stentor.engine import checkpoint
from stentor.engine.device import Communicator
from stentor.engine.ema import exported_weights
from stentor.engine.sharding import TensorShard
from stentor.engine.tensor_files import StoredTensors, save_shards
from stentor.errors import StentorError


@dataclass
class PendingCheckpoint:
    """Part of a checkpoint that this rank writes."""

    step: int
    state: str  # content of state.json
    shards: dict[str, dict[str, TensorShard]]
    """Tensors that the next optimizer step changes, by kind of tensor file and name."""
    frozen: dict[str, TensorShard]  # other tensors of the export that are sharded
    whole: dict[str, Tensor]  # other tensors of the export that are not sharded; for the main rank
    export: Callable[[Path, dict[str, Tensor]], None]
    """Function that writes the export's files from whole tensors; called on the main rank."""
    then: Callable[[Path], None]
    """Function called on the main rank with the folder of the complete checkpoint."""


class CheckpointWriter:
    """Writes one checkpoint at a time into `parent`, a folder shared by all ranks."""

    def __init__(self, communicator: Communicator, parent: Path, device: torch.device):
        self.communicator, self.parent, self.device = communicator, parent, device
        self.rank, self.world = communicator.rank, communicator.world
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._folder: Path | None = None
        self._error: BaseException | None = None

    def start(self, pending: PendingCheckpoint) -> None:
        """Start writing; called on all ranks, when no write is running. Raises StentorError for errors of the disk.

        The tensors of `pending.shards` must not change until `wait_for_copy` returns.
        """
        self.communicator.on_main(lambda: checkpoint.begin(self.parent, pending.step))
        self._folder = self.parent / checkpoint.name_of(pending.step)
        self._copied.clear()
        event = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
        if event is None and self.device.type != "cpu":  # only CUDA is known to copy in a stream of another thread
            _to_host(pending.shards, pin=False)
        self._thread = threading.Thread(target=self._write, args=(pending, event), name="checkpoint")
        self._thread.start()

    def wait_for_copy(self) -> None:
        """Wait until the tensors may change."""
        if self._thread is not None:
            self._copied.wait()

    @property
    def finished(self) -> bool:
        """Whether a write has ended on this rank and was not waited for."""
        return self._thread is not None and not self._thread.is_alive()

    def wait(self) -> Path | None:
        """Wait for the running write, if any, and return the checkpoint's folder. Raises its error on every rank."""
        if self._thread is None:
            return None
        self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error
        return self._folder

    # In the background ------------------------------------------------------------------------------------------------

    def _write(self, pending: PendingCheckpoint, event: torch.cuda.Event | None) -> None:
        error: Exception | None = None
        try:
            if self.rank == 0:
                version = 1 if self.world == 1 else 2
                folder = checkpoint.complete(
                    self.parent, pending.step, lambda folder: self._fill(pending, folder, event), version
                )
                try:
                    pending.then(folder)
                except OSError as caught:
                    raise StentorError(str(caught)) from caught
            else:
                self._fill(pending, checkpoint.temporary(self.parent, pending.step), event)
        except Exception as caught:
            error = caught
        try:
            of_main = self.communicator.gather(_portable(error), background=True)[0]
        except RuntimeError as lost:
            of_main = StentorError(
                f"The checkpoint of step {pending.step} was not completed, because another process ended ({lost})."
            )
        self._error = (error or of_main) if self.rank == 0 else (of_main or error)

    def _fill(self, pending: PendingCheckpoint, folder: Path, event: torch.cuda.Event | None) -> dict[str, str]:
        """Write this rank's files and, on the main rank, the rest when all are done. Returns the hashes of all."""
        scratch = folder.with_name(f".{checkpoint.name_of(pending.step)}.export.tmp")
        hashes: dict[str, str] = {}
        error: Exception | None = None
        try:
            self._copy(pending.shards, event)
            for kind in list(pending.shards):
                path = save_shards(folder / "resume", kind, pending.shards.pop(kind), self.rank, self.world)
                hashes[f"resume/{path.name}"] = checkpoint.sealed(path)
            if pending.frozen:
                write_divided(scratch, pending.frozen, self.rank, self.world)
        except Exception as caught:
            error = caught
        finally:
            self._copied.set()
        try:
            parts = self.communicator.gather((hashes, _portable(error)), background=True)
            for _, failed in parts:
                if failed is not None:
                    raise error or failed
            if self.rank == 0:
                (folder / "resume" / "state.json").write_text(pending.state)
                (folder / "export").mkdir()
                tensors = {n: t.cpu() for n, t in pending.whole.items()} | assembled(scratch, exported_weights(folder))
                pending.export(folder / "export", tensors)
        finally:
            if self.rank == 0:
                shutil.rmtree(scratch, ignore_errors=True)
        return {name: digest for part, _ in parts for name, digest in part.items()}

    def _copy(self, shards: Mapping[str, dict[str, TensorShard]], event: torch.cuda.Event | None) -> None:
        """Replace tensors that change by copies on the host."""
        if event is None:
            _to_host(shards, pin=False)
        else:
            stream = torch.cuda.Stream(self.device)
            stream.wait_event(event)
            with torch.cuda.stream(stream):
                _to_host(shards, pin=True)
            stream.synchronize()
        self._copied.set()


def _to_host(kinds: Mapping[str, dict[str, TensorShard]], pin: bool) -> None:
    for shards in kinds.values():
        for name, shard in shards.items():
            copy = torch.empty(shard.data.shape, dtype=shard.data.dtype, pin_memory=pin)
            shards[name] = shard._replace(data=copy.copy_(shard.data, non_blocking=pin))


def _portable(error: Exception | None) -> Exception | None:
    """Return an error that can be sent to another process."""
    if error is None or isinstance(error, StentorError):
        return error
    if checkpoint.is_of_disk(error):
        return OSError(str(error))
    return StentorError(f"another process could not write its part of the checkpoint ({type(error).__name__}: {error})")


def write_divided(scratch: Path, shards: Mapping[str, TensorShard], rank: int, world: int) -> None:
    """Write this rank's rows of tensors of an export, for `assembled`. They must not change in the meantime."""
    scratch.mkdir(parents=True, exist_ok=True)
    on_host = {n: s._replace(data=s.data.cpu()) for n, s in shards.items()}
    save_shards(scratch, "divided", on_host, rank, world)


def assembled(scratch: Path, *stored: StoredTensors) -> dict[str, Tensor]:
    """Return whole tensors from the files of `write_divided`, and others, as memory-mapped files."""
    scratch.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for number, source in enumerate([StoredTensors.of(scratch, "divided"), *stored]):
        tensors |= source.whole(scratch / f"{number}.whole")
    return tensors
