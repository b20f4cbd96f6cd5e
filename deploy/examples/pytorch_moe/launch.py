"""Starts the ranks of a job on this machine, as torchrun would, but through a file: no port has to be free.

The ranks are forked from a process that has imported torch, which is the long part of a short run. So nothing that has
threads may be started before: no process group, no GPU, no balancer.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from typing import Callable

import torch

GRACE_SECONDS = 10.0  # from asking a process to end to ending it


def launch(work: Callable[[], int], num_ranks: int) -> int:
    """Runs `work` in one process for each rank and waits for all. When one fails, or this process is asked to end, the
    others are ended. On the main thread.

    work: returns an exit status. returns: 0, or the status of the first that failed (of a signal its number).
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="pytorch-moe-") as directory:
        processes = [context.Process(target=_run_rank, args=(work, rank, num_ranks, directory))
                     for rank in range(num_ranks)]
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            for process in processes:
                process.start()
            return _wait(processes)
        finally:
            _end([process for process in processes if process.pid is not None])
            signal.signal(signal.SIGTERM, before)


def _run_rank(work: Callable[[], int], rank: int, num_ranks: int, directory: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # at once, also inside a wait for other ranks
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks),
                      INIT_METHOD=f"file://{directory}/ranks")
    torch.set_num_threads(1)
    sys.exit(work())


def _wait(processes: list[BaseProcess]) -> int:
    while True:
        codes = [process.exitcode for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            print(f"rank {failed[0]} ended with status {codes[failed[0]]}; the others are ended", file=sys.stderr)
            return abs(codes[failed[0]])
        if None not in codes:
            return 0
        time.sleep(0.02)


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
