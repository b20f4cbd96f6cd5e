"""Trains a row of a framework without EPLB and with it, in ranks that are forked: the framework is imported once, by their parent.

A module of a framework has ROWS, dicts with "key", "name", "world" and "steps", and Training(row), with attach(endpoint, job),
run(steps), result() and close(). The row with the key "push" is in the gate of each push.
"""

import os
import pathlib
import re
import sys
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "client/python")]

import compare  # noqa: E402
import eplb  # noqa: E402
import numpy as np  # noqa: E402
import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402

SWITCHES = 3  # at least, in each row
SECONDS = 600 * ranks.PATIENCE  # limit of one training; compilers take most of it
DOCS = HERE.parents[1] / "docs"


def give_time(num_switches):
    """A daemon decides beside the steps, however busy the machine is."""
    time.sleep(0.01 if num_switches >= SWITCHES else 0.1 if num_switches else 0.3)


def is_moved(attached):
    slots = attached.client.placement.physical_to_logical_map
    return (slots != np.arange(slots.shape[1])).any()


def refuses(attached, calls):
    """returns: True if experts are moved, and each of the calls, which would take them by slot, was refused."""
    if not is_moved(attached):
        return False
    for call in calls:
        try:
            call()
        except eplb.FailedPrecondition as error:
            assert "with attached.static_order():" in str(error), error
        else:
            raise AssertionError(f"{call} was not refused")
    return True


def run_page(heading, endpoint, names, number=0, page="frameworks.md"):
    """Runs a block of a section of a page, of whose lines at most three name EPLB. endpoint: None: without these lines. names:
    what the trainer around them has. number: of the block."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)[1]
    block = re.findall(r"```python\n(.*?)```", section, re.S)[number]
    own = [line for line in block.splitlines() if "eplb" in line or "attached" in line]
    assert 0 < len(own) <= 3, own
    if endpoint is None:
        block = "\n".join(line for line in block.splitlines() if line not in own)
    exec(block.replace('"127.0.0.1:29610"', f'"{endpoint}", vote_every=2, report_every=4, require_daemon=True'), names)


def train(rank, training_of, row, directory, name, endpoint):
    """One rank of one training. returns: its result."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(row["world"]))
    dist.init_process_group("gloo", f"file://{directory}/{name}", rank=rank, world_size=row["world"])
    training = training_of({**row, "directory": f"{directory}/{name.partition('-')[0]}.files"})
    if endpoint is not None:
        training.attach(endpoint, name)
    training.run(row["steps"])
    result = training.result()
    training.close()
    dist.barrier()  # gloo's threads end badly when a process exits while another one still talks to it
    dist.destroy_process_group()
    return result


class RowTest(ranks.RankTest):
    def equal(self, training_of, row):
        """Losses, parameters, buffers and optimizer state are equal to the bit, and experts moved SWITCHES times. So it is when
        other numbers of ranks go on from the checkpoint of each training, where one switch suffices."""
        endpoint = f"127.0.0.1:{self.start_daemon(row.get('daemon', '')).grpc_port}"
        for resumed in ({}, *row.get("resumes", ())):
            here = {**row, **resumed, "is_resumed": bool(resumed)}
            off, on = (self.succeed(here["world"], train, training_of, here, self.directory, f"{name}-{here['world']}", given, seconds=SECONDS)
                       for name, given in (("off", None), ("on", endpoint)))
            print(f"{row['name']}: {[each['switches'] for each in on]} {len(compare.merged(on))} tensors", file=sys.stderr)
            self.assertEqual(compare.difference(off, on), "")
            self.assertGreaterEqual(min(len(each["switches"]) for each in on), 1 if resumed else SWITCHES)


def tests_of(training_of, rows):
    """Returns a class of tests, one for each row."""
    def test_of(row):
        def test(self):
            if row.get("unsupported"):
                self.skipTest(row["unsupported"])
            self.equal(training_of, row)
        test.__doc__ = row["name"]
        return test

    return type("RowsTest", (RowTest,), {f"test_{row['key']}": test_of(row) for row in rows})


def main():
    unittest.main(verbosity=2)
