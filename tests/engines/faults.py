"""Faults of a rank during one rearrangement, and of the daemon that it asks."""

import contextlib
import os
import subprocess
import time
from unittest import mock

import ranks
from eplb import placement
from eplb._agreement import Agreement

TIMEOUT = 2 * ranks.PATIENCE  # argument of register


def stop_this_process():
    """Stops this process with SIGSTOP, for longer than the ranks wait for each other."""
    script = f"kill -STOP {os.getpid()}; sleep {1.5 * TIMEOUT}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", script]) as stopper:
        while stopper.poll() is None:
            time.sleep(0.01)


def order(directory, what):
    """Has the process of the tests "kill" or "start" the daemon."""
    (directory / what).touch()
    ranks.harness.wait_for(lambda: not (directory / what).exists(), 30, f"{what} the daemon")


def obey(daemon, directory, ended):
    """Follows orders until the event `ended`."""
    while not ended.wait(0.01):
        for what in ("kill", "start"):
            if (directory / what).exists():
                getattr(daemon, what)()
                (directory / what).unlink()


def during(fault, directory):
    """Returns a context in which this rank has a fault: "stopped" or "kill" (the daemon) as it begins to agree with the other
    ranks, "plan_fails", or None."""
    decide = Agreement.decide

    def harmed(*given):
        if fault == "stopped":
            stop_this_process()
        else:
            time.sleep(TIMEOUT / 2)  # rank 0 has its answer, and waits for this rank
            order(directory, fault)
        return decide(*given)

    if fault == "plan_fails":
        return mock.patch.object(placement, "plan", side_effect=MemoryError("no memory"))
    return mock.patch.object(Agreement, "decide", harmed) if fault else contextlib.nullcontext()
