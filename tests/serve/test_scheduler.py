"""Turns and batches of the queue, and the worker that takes them, with a model that is a function."""

import threading
from types import SimpleNamespace

import pytest

from stentor.serve.errors import QueueClosed
from stentor.serve.scheduler import JobQueue, QueuedJob, Worker


class Asked:
    """A request: what it got, in order."""

    def __init__(self, name, *sizes, group="a", predict=None, load=None):
        self.name, self.results, self.error, self.ended = name, {}, None, threading.Event()
        self.job = QueuedJob(
            sizes,
            group,
            load or (lambda i: (name, i)),
            lambda worker, items: predict(items) if predict else items,
            self.done,
            self.failed,
        )

    def done(self, i, result):
        self.results[i] = result
        if len(self.results) == len(self.job.sizes):
            self.ended.set()

    def failed(self, error):
        self.error = error
        self.ended.set()


class Gate:
    """A model that waits for `release`; `entered` says that it does, and `seen` what it was given."""

    def __init__(self):
        self.entered, self.release, self.seen = threading.Event(), threading.Event(), []

    def __call__(self, items):
        self.entered.set()
        assert self.release.wait(10)
        self.seen += items
        return items


def order(queue, *asked):
    """The names of pieces, batch by batch, until the queue is empty."""
    for request in asked:
        queue.submit(request.job)
    names = {request.job: request.name for request in asked}
    batches = []
    while batch := queue.take(timeout=0):
        batches.append([(names[job], i) for job, i in batch])
    return batches


def test_a_clip_does_not_wait_for_a_long_file():
    queue = JobQueue(60.0)
    long = Asked("long", *[30.0] * 100)
    queue.submit(long.job)
    assert [job for job, _ in queue.take()] == [long.job] * 2
    for window in range(2, 60, 2):
        clip = Asked("clip", 2.0)
        queue.submit(clip.job)
        assert queue.take() == [(clip.job, 0)]  # alone: windows of 30 s would make it wait for them
        assert queue.take()[0] == (long.job, window)


def test_clips_without_end_do_not_stop_a_long_file():
    queue = JobQueue(30.0)
    long = Asked("long", *[30.0] * 3)
    queue.submit(long.job)
    served, clips = 0, 0
    while served < 3 and clips < 200:
        queue.submit(Asked("clip", 2.0).job)
        clips += 1
        served += sum(job is long.job for job, _ in queue.take())
    assert served == 3 and clips < 50  # one window of 30 s for 15 clips of 2 s


BATCHES = {
    "in_the_order_of_arrival_a_clip_waits": (
        JobQueue(60.0, "fifo"),
        [Asked("long", *[30.0] * 10), Asked("clip", 2.0)],
        [*([("long", i), ("long", i + 1)] for i in range(0, 10, 2)), [("clip", 0)]],
    ),
    "two_files_have_equal_shares": (
        JobQueue(30.0),
        [Asked("a", *[30.0] * 6), Asked("b", *[30.0] * 6)],
        [[(name, i)] for i in range(6) for name in "ab"],
    ),
    "like_lengths_across_requests": (
        JobQueue(20.0),
        [Asked(str(n), float(n)) for n in (3, 18, 4, 5, 17, 4)],
        [[("3", 0), ("4", 0), ("4", 0)], [("5", 0)], [("17", 0)], [("18", 0)]],
    ),
    "what_decodes_otherwise_is_not_in_one": (
        JobQueue(60.0),
        [Asked("a", 5.0), Asked("b", 5.0, group="b"), Asked("c", 5.0)],
        [[("a", 0), ("c", 0)], [("b", 0)]],
    ),
    "a_longer_piece_is_one": (JobQueue(10.0), [Asked("a", 25.0, 25.0)], [[("a", 0)], [("a", 1)]]),
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches(case):
    queue, requests, expected = BATCHES[case]
    assert order(queue, *requests) == expected


def test_long_files_leave_a_worker_to_others():
    queue = JobQueue(60.0, long_workers=1)
    for name in "ab":
        queue.submit(Asked(name, *[30.0] * 4).job)
    batch = queue.take(timeout=0)
    assert len(batch) == 2 and queue.take(timeout=0) == []
    queue.submit((clip := Asked("clip", 29.0)).job)
    assert queue.take(timeout=0) == [(clip.job, 0)]  # without the windows of the files, though they are as long
    queue.done([(clip.job, 0)])
    assert queue.take(timeout=0) == []
    queue.done(batch)
    assert len(queue.take(timeout=0)) == 2


def test_jobs_with_a_state_are_done_where_it_is_by_one_worker_of_their_group():
    queue, names = JobQueue(60.0), ("one", "two", "three", "elsewhere", "file")
    one, two, three, elsewhere, file = (Asked(name, 0.3, group=name == "file") for name in names)
    for asked in (one, two, three):
        asked.job.device = "cuda:0"
    elsewhere.job.device = "cuda:1"
    for asked in (one, two, elsewhere, file):
        queue.submit(asked.job)
    batch = queue.take(0, "cuda:0")
    assert [job for job, _ in batch] == [one.job, two.job]
    queue.submit(three.job)
    assert queue.take(0, "cuda:0") == [(file.job, 0)]  # the others wait, to be a batch
    assert queue.take(0, "cuda:0") == []
    assert queue.take(0, "cuda:1") == [(elsewhere.job, 0)]
    queue.done(batch)
    assert queue.take(0, "cuda:0") == [(three.job, 0)]


@pytest.fixture
def work():
    """Starts a worker over a queue of batches of 60 s."""
    workers = []

    def start(queue=None):
        queue = queue or JobQueue(60.0)
        workers.append(Worker("test", SimpleNamespace(task=None), queue))
        workers[-1].start()
        return queue, workers[-1]

    yield start
    for worker in workers:
        worker.stop()


def test_results_reach_their_requests(work):
    queue, _ = work()
    requests = [Asked(str(n), *[1.0] * n) for n in range(1, 6)]
    for request in requests:
        queue.submit(request.job)
    for request in requests:
        assert request.ended.wait(10)
        assert request.results == {i: (request.name, i) for i in range(int(request.name))}


def test_workers_share_a_queue(work):
    queue, _ = work()
    work(queue)
    gate = Gate()
    long = Asked("long", 30.0, group="long", predict=gate)
    short = Asked("short", 1.0)
    queue.submit(long.job)
    queue.submit(short.job)
    assert short.ended.wait(10) and not long.ended.is_set()
    gate.release.set()
    assert long.ended.wait(10) and long.error is None


def test_what_fails_in_a_batch_fails_alone(work):
    queue, _ = work()
    gate = Gate()

    def picky(items):
        if ("bad", 0) in items:
            raise ValueError("bad")
        return items

    queue.submit(Asked("gate", 1.0, group="gate", predict=gate).job)
    assert gate.entered.wait(10)
    requests = [Asked(name, 1.0, predict=picky) for name in ("good", "bad", "fine")]
    unread = Asked("unread", 1.0, predict=picky, load=lambda i: 1 / 0)
    for request in (*requests, unread):
        queue.submit(request.job)
    gate.release.set()
    for request in (*requests, unread):
        assert request.ended.wait(10)
    kinds = ["NoneType", "ValueError", "NoneType", "ZeroDivisionError"]
    assert [type(r.error).__name__ for r in (*requests, unread)] == kinds
    assert requests[0].results == {0: ("good", 0)}


def test_a_cancelled_request_is_not_worked_at(work):
    queue, _ = work()
    gate = Gate()
    gone, other = Asked("gone", *[30.0] * 9, predict=gate), Asked("other", 1.0, predict=gate)
    queue.submit(gone.job)
    assert gate.entered.wait(10)
    queue.cancel(gone.job)
    assert len(queue) == 0
    queue.submit(other.job)
    gate.release.set()
    assert other.ended.wait(10)
    assert [item for item in gate.seen if item[0] == "gone"] == [("gone", 0), ("gone", 1)] and gone.results == {}


def test_a_stopped_worker_fails_what_waits(work):
    queue, worker = work()
    gate = Gate()
    running, waiting = Asked("running", 1.0, predict=gate), Asked("waiting", 1.0, group="b")
    queue.submit(running.job)
    assert gate.entered.wait(10)
    queue.submit(waiting.job)
    queue.close()
    assert waiting.ended.is_set() and isinstance(waiting.error, QueueClosed)
    gate.release.set()
    worker.stop()
    assert running.results == {0: ("running", 0)} and not worker.alive
    late = Asked("late", 1.0)
    queue.submit(late.job)
    assert isinstance(late.error, QueueClosed)


def test_a_worker_outlives_a_job_that_fails_before_its_end(work):
    queue, worker = work()
    failing = Asked("failing", *[30.0] * 9, load=lambda i: 1 / 0)
    queue.submit(failing.job)  # its last windows are in the queue when it has failed
    assert failing.ended.wait(10)
    short = Asked("short", 1.0, predict=lambda items: [])  # fewer results than pieces
    queue.submit(short.job)
    assert short.ended.wait(10) and isinstance(short.error, ValueError)
    after = Asked("after", 1.0)
    queue.submit(after.job)
    assert after.ended.wait(10) and after.results == {0: ("after", 0)} and worker.alive


def test_what_was_sent_is_not_logged(work, caplog):
    queue, _ = work()
    asked = Asked("a", 1.0, predict=lambda items: {}["what somebody said"])
    queue.submit(asked.job)
    assert asked.ended.wait(10)
    assert "KeyError at test_scheduler.py" in caplog.text and "somebody" not in caplog.text
