"""How the ranks of the example meet: which GPU and which backend each has, and that any launcher may start them."""

import os
import subprocess
import unittest
import unittest.mock

import example  # finds the example's modules and the harness

import job as harness
import torch
import torch.distributed as dist

import collectives


class JoinTest(unittest.TestCase):
    def join(self, device="cuda", backend="auto", gpus=2, **environment):
        """join on a machine with so many GPUs, as far as torch says. returns: the ranks, and the backend that was chosen."""
        with unittest.mock.patch.multiple(torch.cuda, is_available=lambda: gpus > 0, device_count=lambda: gpus,
                                          set_device=lambda _: None), \
                unittest.mock.patch.object(dist, "is_nccl_available", return_value=True), \
                unittest.mock.patch.object(dist, "init_process_group") as start, \
                unittest.mock.patch.dict(os.environ, {name: str(value) for name, value in environment.items()}, clear=True):
            ranks = collectives.join(device, backend)
            return ranks, start.call_args.args[0] if start.called else None

    def test_ranks_with_a_gpu_each_meet_over_nccl(self):
        ranks, backend = self.join(RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2)
        self.assertEqual((ranks.rank, ranks.world_size, str(ranks.device), backend), (5, 8, "cuda:1", "nccl"))
        self.assertFalse(ranks.through_host)

    def test_ranks_that_share_a_gpu_go_through_the_host(self):
        ranks, backend = self.join(RANK=2, WORLD_SIZE=4, LOCAL_RANK=2, LOCAL_WORLD_SIZE=4)
        self.assertEqual((str(ranks.device), backend, ranks.through_host), ("cuda:0", "gloo", True))

    def test_a_launcher_that_does_not_tell_the_ranks_of_a_machine_needs_the_backend(self):
        self.assertEqual(self.join(RANK=2, WORLD_SIZE=4, LOCAL_RANK=0)[1], "gloo")
        self.assertEqual(self.join(RANK=2, WORLD_SIZE=4, LOCAL_RANK=0, backend="nccl")[1], "nccl")

    def test_one_process_needs_no_backend(self):
        ranks, backend = self.join()
        self.assertEqual((ranks.rank, ranks.world_size, str(ranks.device), backend), (0, 1, "cuda:0", None))

    def test_a_machine_without_a_gpu_is_told(self):
        with self.assertRaisesRegex(ValueError, "--device cuda: torch sees no GPU"):
            self.join(gpus=0)


class LauncherTest(example.ExampleTest):
    def test_ranks_of_another_launcher_meet_at_an_address_as_torchrun_tells_it(self):
        self.run_worker("ours", ranks=2, steps=3)
        port = harness.free_port()
        log = self.directory / "theirs.jsonl"
        ranks = []
        for rank in range(2):
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
            ranks.append(subprocess.Popen([example.PYTHON, "-B", example.EXAMPLE / "train.py",
                                           *example.flags({**example.TINY, "steps": 3, "log_json": log})],
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                          env={**os.environ, **{name: str(value) for name, value in told.items()}}))
            self.addCleanup(ranks[-1].wait)
            self.addCleanup(ranks[-1].kill)
        for rank in ranks:
            said, _ = rank.communicate(timeout=example.TIMEOUT_SECONDS)
            self.assertEqual(rank.returncode, 0, said)
        self.assertEqual([record["loss"] for record in self.records("theirs")], [record["loss"] for record in self.records("ours")])


if __name__ == "__main__":
    unittest.main()
