"""One rank of a training, as `run` starts it: CHECKOUT RESULT ROW, the last in JSON."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist


def run(stand_in, training_of):
    """stand_in: (row) -> None, what stands in at the boundary. training_of: (row) -> a training, with attach, run, result and
    close.

    Both import the framework, which is found in CHECKOUT. Writes the training's result to RESULT.
    """
    checkout, result, row = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
    sys.path.insert(0, checkout)
    torch.set_num_threads(1)
    stand_in(row)
    training = training_of(row)
    if "endpoint" in row:
        training.attach(row["endpoint"], row["job"])
    training.run(row["steps"])
    result.write_text(json.dumps(training.result()))
    training.close()
    dist.barrier()  # gloo's threads end badly when a process exits while another one still talks to it
    dist.destroy_process_group()
