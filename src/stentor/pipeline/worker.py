"""Worker and executor as a prepare pipeline sees them: what is done with a group, and what runs it on all groups."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from stentor.data.cut import UnusableRecord

GroupT = TypeVar("GroupT")
GroupInT = TypeVar("GroupInT", contravariant=True)
ResultT = TypeVar("ResultT")
ResultOutT = TypeVar("ResultOutT", covariant=True)


class Worker(Protocol[GroupInT, ResultOutT]):
    """The work on a group of records. It is pickled to each process that does the work."""

    def setup(self, device: str) -> None:
        """Load what all groups need; called once in each process, before its first group."""
        return

    def process(self, group: GroupInT) -> ResultOutT:
        """The result of a group, which depends on nothing but the group."""


class RecordWorker:
    """A worker that gives (outputs, rejects) for groups of records, so that an executor can find out which record it is
    that processes die of. The groups are lists of things with an `id`, unless a subclass says otherwise."""

    def split(self, group: Any) -> list[Any]:
        """Groups of one record each."""
        return [[record] for record in group]

    def name(self, group: Any) -> str:
        """The id of the record of such a group."""
        return str(group[0].id)

    def join(self, results: Sequence[tuple[list[Any], list[UnusableRecord]]]) -> Any:
        """The result of a group, of those of its records."""
        return [o for outputs, _ in results for o in outputs], [r for _, rejects in results for r in rejects]

    def crashed(self, group: Any) -> Any:
        """The result of a group of one record, of which every process died."""
        name = self.name(group)
        return [], [UnusableRecord(name, "crashed", f"{name}: the process that works on it dies, each time.")]


class Executor(Protocol):
    """Runs a worker on all groups: in processes of this machine, or elsewhere."""

    def map(
        self, worker: Worker[GroupT, ResultT], groups: Sequence[GroupT], stopping: Callable[[], bool]
    ) -> Generator[ResultT, None, None]:
        """The results, in the order of the groups. Once `stopping()` is true no group is begun, and the results end
        after those of the groups that were begun. Closing the generator releases the processes."""
