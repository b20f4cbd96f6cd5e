"""A rank of a job in Python, over whatever eplb package is installed:  python_rank.py RANK WORLD ENDPOINT

It trains until a switch, at most a minute, and checks that each row is still its expert's.
"""

import sys
import time

import eplb
import numpy as np

LAYERS, EXPERTS, WIDTH = 2, 8, 64
HOT = np.array([4000, 4000] + [500] * (EXPERTS - 2), dtype=np.int64)
DEADLINE = 60


def main():
    rank, world, endpoint = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with eplb.Client.connect(endpoint=endpoint, job="python", rank=rank, world_size=world, num_layers=LAYERS, num_experts=EXPERTS,
                             require_daemon=True, report_every=10) as client:
        def rows(layer):
            experts = np.asarray(client.placement.local_experts(layer))
            return np.repeat(experts[:, None], WIDTH, axis=1).astype(np.float32)

        weights = [rows(layer) for layer in range(LAYERS)]
        for layer, weight in enumerate(weights):
            client.register(weight, name=f"layers.{layer}.w", layer=layer)
        client.finish_registration()
        end = time.monotonic() + DEADLINE
        step, switched = 0, False
        while not switched:
            # Ranks stop together: a switch is seen by all at one step, and the deadline is only for a test that failed.
            if time.monotonic() > end:
                raise SystemExit(f"rank {rank}: no switch within {DEADLINE} s, {step} steps")
            for layer in range(LAYERS):
                client.record(layer, HOT)
            time.sleep(0.002)
            boundary = client.step_boundary(step)
            switched, step = boundary.switched, step + 1
        for layer, weight in enumerate(weights):
            if not np.array_equal(weight, rows(layer)):
                raise SystemExit(f"rank {rank}: layer {layer} has another expert's weights")
        print(f"rank {rank} switched to version {boundary.version} after step {step - 1}", flush=True)


main()
