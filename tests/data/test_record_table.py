"""Record tables: sequences on disk, read item by item, also by other processes."""

import multiprocessing
import pickle
import tracemalloc

import pytest

from stentor.data.record_table import RecordTable, Selection


def test_is_a_sequence_that_grows():
    table = RecordTable({"id": str(n)} for n in range(5))
    assert len(table) == 5 and table[-1] == {"id": "4"}
    table.append({"id": "5"})
    assert [item["id"] for item in table] == list("012345")
    with pytest.raises(IndexError):
        table[6]
    assert list(RecordTable()) == []


def test_selections_are_read_when_asked_for_and_pickled_as_lists():
    table = RecordTable(range(100, 200))
    selection = table[10:20:2]
    assert isinstance(selection, Selection) and list(selection) == [110, 112, 114, 116, 118]
    assert list(selection[1:3]) == [112, 114] and selection[-1] == 118
    assert list(table.select([5, 3, 3])) == [105, 103, 103]
    assert list(selection.where(lambda item: item > 113)) == [114, 116, 118]
    sent = pickle.loads(pickle.dumps(selection))
    assert type(sent) is list and sent == list(selection)


def test_items_are_not_held_in_memory():
    tracemalloc.start()
    table = RecordTable("x" * 1000 + str(n) for n in range(5000))
    groups = [table[i : i + 10] for i in range(0, 5000, 10)]
    assert tracemalloc.get_traced_memory()[0] < 300_000  # of 5 MB
    tracemalloc.stop()
    assert groups[-1][-1].endswith("x4999")


def _length(table, queue):
    queue.put(sum(map(len, table)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork")
def test_forked_processes_read_it_at_the_same_time():
    table = RecordTable("x" * n for n in range(300))
    assert len(table[299]) == 299
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    processes = [context.Process(target=_length, args=(table, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    assert {queue.get() for _ in processes} == {299 * 150}
    for process in processes:
        process.join()
