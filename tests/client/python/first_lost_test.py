"""A rank of a job of eight is killed, each in turn; gloo falls over in the others. The daemon names the killed one.

The others report within milliseconds that they failed, and a launcher kills whoever is left: the daemon must not take the
first report for the cause.
"""

import json
import multiprocessing
import os
import signal
import time
import unittest
import urllib.error
import urllib.request

import numpy as np
import torch
import torch.distributed as dist

import eplb
import ranks

harness = ranks.harness

WORLD = 8
ENOUGH_STEPS = 8  # before the kill
LAUNCHER_LOOKS = 0.02  # seconds between two looks of a launcher at its processes


def train(rank, directory, endpoint, job):
    """Trains until a collective fails: by the exception, as a training script does."""
    dist.init_process_group("gloo", f"file://{directory}/torch", rank=rank, world_size=WORLD)
    gradient = torch.ones(64)
    with eplb.Client.connect(eplb.torch_all_gather(), endpoint=endpoint, job=job, num_layers=2, num_experts=8, vote_every=4,
                             report_every=4) as client:
        ranks.Experts(client, ranks.numpy_zeros)
        for step in range(1_000_000):
            for layer in range(2):
                client.record(layer, np.ones(8, np.int64))
            dist.all_reduce(gradient)
            client.step_boundary(step)


class FirstLostTest(ranks.RankTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon('[limits]\nsession_grace = "2s"\n')

    def test_others_that_fall_over_the_collective_are_not_blamed(self):
        for victim in range(WORLD):
            with self.subTest(victim=victim):
                self.check(victim, launcher=False)

    def test_others_that_a_launcher_kills_are_not_blamed(self):
        for victim in range(WORLD):
            with self.subTest(victim=victim):
                self.check(victim, launcher=True)

    def check(self, victim, launcher):
        job = f"victim-{victim}-{launcher}"
        directory = self.directory / job
        directory.mkdir()
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=train, args=(rank, directory, self.daemon.endpoint, job)) for rank in range(WORLD)]
        try:
            for process in processes:
                process.start()
            harness.wait_for(lambda: self.trains(job) or not all(each.is_alive() for each in processes), 60, "eight ranks train")
            self.assertTrue(all(process.is_alive() for process in processes), "a rank ended before the kill")
            os.kill(processes[victim].pid, signal.SIGKILL)
            if launcher:
                while processes[victim].is_alive():
                    time.sleep(LAUNCHER_LOOKS)
                for process in processes:
                    process.terminate()
            harness.wait_for(lambda: self.view(job)["ending"], 60, "the run ends")
            for process in processes:
                process.join(60 * ranks.PATIENCE)
            harness.wait_for(lambda: self.view(job)["connected_ranks"] == 0, 20, "all streams have ended")
        finally:
            for process in processes:
                process.kill()
                process.join()
        ended = self.view(job)
        print(f"rank {victim} killed{', launcher' if launcher else ''}: {ended['state']}: {ended['end_reason']}", flush=True)
        self.assertTrue(ended["end_reason"].startswith(f"rank {victim} was lost at "), ended["end_reason"])
        self.assertIn(ended["state"], ("FAILED", "LOST"))
        self.assertEqual(ended["ranks"][victim]["state"], "lost")
        self.assertEqual(ended["waiting_for"] == "", ended["state"] == "FAILED")

    def view(self, job):
        """Returns the daemon's view of the job; None before its first Hello."""
        address = f"http://127.0.0.1:{self.daemon.http_port}/api/v1/jobs/{job}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            return None

    def trains(self, job):
        view = self.view(job)
        return view is not None and view["connected_ranks"] == WORLD and view["step"] >= ENOUGH_STEPS


if __name__ == "__main__":
    unittest.main()
