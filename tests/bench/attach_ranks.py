#!/usr/bin/env python3
"""Measures attach, static_order and detach of eplb.torch by the number of ranks: processes on loopback, no daemon.

  attach_ranks.py [--ranks N ..] [--no-libuv] [--check]

The ranks are forked after one import of torch. Each has a model of two MoE layers and AdamW with state, and meets over a
TCPStore. The first placement has every expert on another rank, so that each call moves all rows. Printed are the seconds of the
slowest rank for each call, and their sum. Needs EPLB_LIBRARY, or an installed libeplb, and torch (in build/venv, from tests/environment).
With --check on an idle machine (exit 1): the total is at most 0.3, 1, 4 and 8 s at 2, 8, 32 and 64 ranks.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import socket
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import eplb.torch  # noqa: E402

LIMITS = {2: 0.3, 8: 1.0, 32: 4.0, 64: 8.0}
CALLS = ("attach", "static_order", "detach")
PATIENCE = 100  # seconds of one measurement


class Layer(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.router = nn.Linear(4, 2 * world, bias=False)
        self.experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))


def write_placement(directory, world):
    """The experts of all layers in falling order."""
    slots = list(range(2 * world))
    file = pathlib.Path(directory) / "placement.json"
    file.write_text(json.dumps({
        "format": "eplb.placement.v1", "num_layers": 2, "num_logical_experts": len(slots), "num_slots": len(slots), "num_gpus": world,
        "num_nodes": 1, "num_groups": 1, "physical_to_logical_map": [slots[::-1]] * 2,
        "logical_to_physical_map": [[[slot] for slot in slots[::-1]]] * 2, "logical_replica_count": [[1] * len(slots)] * 2}))
    return file


def run(rank, world, port, use_libuv, placement, results):
    store = dist.TCPStore("127.0.0.1", port, world, False, use_libuv=use_libuv)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    model = nn.Sequential(Layer(world), Layer(world))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    dist.barrier()
    times = [time.monotonic()]
    attached = eplb.torch.attach(model, optimizer, experts=nn.ModuleList, router="router", turn=lambda output, columns: output,
                                 initial_placement=placement, check_batch=False)
    times.append(time.monotonic())
    with attached.static_order():
        pass
    times.append(time.monotonic())
    attached.detach()
    times.append(time.monotonic())
    results.put([after - before for before, after in zip(times, times[1:])])
    dist.barrier()  # the store is rank 0's
    dist.destroy_process_group()


def measure(world, use_libuv):
    """returns: for each call the seconds of the slowest rank."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ready = context.Event()

    def host():
        store = dist.TCPStore("127.0.0.1", port, world, True, wait_for_workers=False, use_libuv=use_libuv)
        ready.set()
        time.sleep(PATIENCE)
        del store

    server = context.Process(target=host, daemon=True)
    server.start()
    assert ready.wait(PATIENCE), "the store did not start"
    with tempfile.TemporaryDirectory(prefix="eplb-bench-") as directory:
        arguments = (world, port, use_libuv, write_placement(directory, world), results)
        processes = [context.Process(target=run, args=(rank, *arguments), daemon=True) for rank in range(world)]
        for process in processes:
            process.start()
        try:
            found = [results.get(timeout=PATIENCE) for _ in processes]
            for process in processes:
                process.join(PATIENCE)
        finally:
            for process in (*processes, server):
                process.kill()
    return [max(of_call) for of_call in zip(*found)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(LIMITS))
    parser.add_argument("--no-libuv", action="store_true", help="use the store of torch before 2.4")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # torch imports its compiler with the first optimizer
    eplb.library_version()
    late = []
    print(f"{'ranks':>8}" + "".join(f"{call + ' s':>16}" for call in CALLS) + f"{'total s':>12}")
    for world in options.ranks:
        seconds = measure(world, not options.no_libuv)
        total = sum(seconds)
        print(f"{world:8}" + "".join(f"{each:16.3f}" for each in seconds) + f"{total:12.3f}", flush=True)
        if total > LIMITS.get(world, float("inf")):
            late.append(f"{world} ranks: {total:.2f} s, expected at most {LIMITS[world]:g}")
    if options.check and late:
        print("\n".join(late), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
