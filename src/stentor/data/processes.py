"""Worker processes: how they take signals, and that they end with their parent."""

import multiprocessing
import os
import signal
import threading


def plain_signals() -> None:
    """End at SIGTERM, whatever the parent does then, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_parent() -> None:
    """From now on, end when the parent ends, also when it is killed and can stop nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
