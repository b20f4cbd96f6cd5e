"""Ranks that count no tokens: every view names them within two report intervals, and so does Boundary.reason."""

import contextlib
import json
import os
import re
import subprocess
import time
import unittest
import urllib.request

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import numpy as np  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

LAYERS, REPORT_EVERY = 4, 5
HARNESS = ranks.harness


class Views:
    """An operator's view of job `counting` at a daemon."""

    def __init__(self, daemon):
        self.daemon = daemon

    def eplbctl(self, *words):
        return subprocess.run([HARNESS.BIN / "eplbctl", *words, "--endpoint", self.daemon.endpoint], capture_output=True, text=True,
                              timeout=60)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.http_port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def last_step(self):
        """The last step of the newest window; -1 before the daemon knows the job, as long as no Hello has arrived."""
        jobs = json.loads(self.get("/api/v1/jobs"))["jobs"]
        return max((job["last_window_last_step"] for job in jobs), default=-1)

    def all(self):
        """Data that the last rank collects while the job still trains."""
        metrics = self.get("/metrics")
        doctor = self.eplbctl("doctor", "--all")
        return {
            "status": self.eplbctl("status").stdout,
            "jobs": self.eplbctl("get", "jobs").stdout,
            "explain": json.loads(self.eplbctl("explain", "--job", "counting", "-o", "json").stdout),
            "doctor": doctor.stdout, "doctor_exit": doctor.returncode,
            "job": json.loads(self.get("/api/v1/jobs/counting")),
            "windows": json.loads(self.get("/api/v1/jobs/counting/windows"))["windows"],
            "events": json.loads(self.eplbctl("get", "events", "--job", "counting", "-o", "json").stdout)["events"],
            "metrics": {name: float(value) for name, value in (line.rsplit(" ", 1) for line in metrics.splitlines() if line[:1] != "#")},
        }


def collected(daemon, rank, world, directory, steps):
    """Rank 0 looks once the daemon has the window that ends with step `steps - 1`; the others wait for it."""
    if rank != 0:
        while not (directory / "seen").exists():
            time.sleep(0.01)
        return None
    views, deadline = Views(daemon), time.monotonic() + 30 * ranks.PATIENCE
    try:
        while views.last_step() < steps - 1:
            assert time.monotonic() < deadline, "the daemon has not seen the last window"
            time.sleep(0.05)
        return views.all()
    finally:
        (directory / "seen").touch()


def recorded(rank, world, directory, daemon, counts_of, steps=2 * REPORT_EVERY):
    """A rank of eplb.Client. counts_of: (rank, layer) -> counts, None: it is not recorded. returns: the reasons, and the views."""
    client = ranks.connect(directory, rank, world, num_layers=LAYERS, endpoint=daemon.endpoint, job="counting",
                           report_every=REPORT_EVERY, require_daemon=True)
    for layer in range(LAYERS):
        client.register(np.zeros((8 // world, 3), np.float32), name=f"layers.{layer}", layer=layer, role="weight")
    client.finish_registration()
    reasons = []
    for step in range(steps):
        for layer in range(LAYERS):
            counts = counts_of(rank, layer)
            if counts is not None:
                client.record(layer, np.full(8, counts, np.int64))
        reasons.append(client.step_boundary(step).reason)
    views = collected(daemon, rank, world, directory, steps)
    client.close()
    return reasons, views


class Gate(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).softmax(dim=1).topk(2, dim=1)


class MoE(torch.nn.Module):
    """Experts that compute nothing of one another: what is counted is all that matters here."""

    def __init__(self, local):
        super().__init__()
        self.gate = Gate(4, 8)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(local))

    def forward(self, x):
        weights, _ = self.gate(x)
        return x + weights.sum() * sum(expert(x) for expert in self.experts)


def attached(rank, world, directory, daemon, silence, steps=2 * REPORT_EVERY, train=REPORT_EVERY, optimizer=True):
    """A rank of eplb.torch.attach. silence: (rank, model) -> context of the steps after `train` steps that train."""
    dist.init_process_group("gloo", f"file://{directory}/gloo", rank=rank, world_size=world)
    model = torch.nn.Sequential(*(MoE(8 // world) for _ in range(LAYERS)))
    adam = torch.optim.AdamW(model.parameters()) if optimizer else None
    attachment = eplb.torch.attach(model, adam, experts="*.experts", router="gate", endpoint=daemon.endpoint, job="counting",
                                   report_every=REPORT_EVERY, vote_every=2, require_daemon=True, check_batch=False)
    reasons = []

    def step(with_gradients):
        loss = model(torch.ones(16, 4)).square().mean()
        if adam is not None:
            adam.zero_grad()
            if with_gradients:
                loss.backward()
            adam.step()
        reasons.append(attachment.step_boundary().reason)

    for _ in range(train):
        step(True)
    with silence(rank, model):
        for _ in range(steps):
            step(torch.is_grad_enabled())
        eplb_steps = attachment._next_step - attachment._skipped_steps
        views = collected(daemon, rank, world, directory, eplb_steps // REPORT_EVERY * REPORT_EVERY) if eplb_steps else None
        if views is None and rank == 0:
            (directory / "seen").touch()
    attachment.close()
    dist.destroy_process_group()
    return reasons, views


@contextlib.contextmanager
def evaluation(_rank, model):
    model.eval()
    with torch.no_grad():
        yield


@contextlib.contextmanager
def inference(_rank, model):
    model.eval()
    with torch.inference_mode():
        yield


class CountingTest(ranks.RankTest):
    def assert_named(self, views, *words, figure=False):
        """status, get jobs, explain, doctor, JSON and metrics name it. figure: some layers of the job count."""
        sentence = views["job"]["not_counting_reason"]
        for word in words:
            self.assertIn(word, sentence)
        self.assertIn("NOT_COUNTING", views["jobs"])
        for view in ("status", "doctor"):
            text = re.sub(r"\s+", " ", views[view])
            self.assertIn(f"NOT_COUNTING: {sentence}", text)
        self.assertEqual(views["explain"]["not_counting_reason"], sentence)
        self.assertEqual(views["doctor_exit"], 8)
        self.assertEqual([event["name"] for event in views["events"]].count("not_counting"), 1)
        self.assertEqual(views["metrics"]['eplb_not_counting{training_job="counting"}'], 1)
        measured = 'eplb_balancedness_mean_ratio{training_job="counting"}'
        self.assertEqual(measured in views["metrics"], figure)
        self.assertEqual(views["job"]["balancedness"] is not None, figure)
        self.assertEqual(views["job"]["balancedness_static"] is not None, figure)
        self.assertEqual(bool(views["job"]["not_measured_reason"]), not figure)
        self.assertEqual(views["windows"][-1]["balancedness"] is not None, figure)

    def run_counted(self, counts_of):
        daemon = self.start_daemon('mode = "observe"')
        return self.succeed(2, lambda rank: recorded(rank, 2, self.directory, daemon, counts_of))

    def run_attached(self, silence, world=2, **options):
        daemon = self.start_daemon('mode = "observe"')
        return self.succeed(world, lambda rank: attached(rank, world, self.directory, daemon, silence, **options))

    def test_all_layers_of_all_ranks_count(self):
        (reasons, views), (others, _) = self.run_counted(lambda rank, layer: 10 + rank)
        self.assertEqual({*reasons, *others}, {""})
        self.assertEqual(views["job"]["not_counting_reason"], "")
        self.assertEqual(views["metrics"]['eplb_not_counting{training_job="counting"}'], 0)
        self.assertEqual(views["job"]["balancedness"], 1)
        self.assertIn("tokens: every reporting rank counts them in every layer", views["doctor"])

    def test_record_was_forgotten(self):
        (reasons, views), (others, _) = self.run_counted(lambda rank, layer: None)
        self.assert_named(views, "no rank has counted a token since step 0")
        self.assertIn("measured - (no tokens were counted in steps 5..9)", re.sub(r"\s+", " ", views["status"]))
        for rank, of_rank in enumerate((reasons, others)):
            self.assertEqual(set(of_rank[:-1]), {""})
            self.assertIn(f"NOT_COUNTING: rank {rank} has counted no token since step 0; it did not record any layer", of_rank[-1])

    def test_one_layer_of_four_is_recorded(self):
        (reasons, views), _ = self.run_counted(lambda rank, layer: 10 if layer == 2 else None)
        self.assert_named(views, "no rank has counted a token of layers 0, 1, 3 since step 0", figure=True)
        self.assertEqual([one is None for one in views["job"]["layer_balancedness"]], [True, True, False, True])
        self.assertEqual(sum(name.startswith("eplb_balancedness_ratio{") for name in views["metrics"]), 1)
        self.assertIn("rank 0 has counted no token of layers 0, 1, 3 since step 0; it did not record them", reasons[-1])

    def test_one_rank_is_silent(self):
        (reasons, views), (others, _) = self.run_counted(lambda rank, layer: 0 if rank == 1 else 10)
        self.assert_named(views, "rank 1 has counted no token since step 0, other ranks have", figure=True)
        self.assertEqual(set(reasons), {""})
        self.assertIn("rank 1 has counted no token since step 0; it recorded only counts of 0", others[-1])

    def test_a_model_in_evaluation_without_gradients(self):
        (reasons, views), (others, _) = self.run_attached(evaluation)
        self.assert_named(views, "no rank has counted a token since step")
        for of_rank in (reasons, others):
            self.assertEqual(set(of_rank[:-2]), {""})
            self.assertRegex(of_rank[-1], r"NOT_COUNTING: rank \d .*; the routers of 0.experts, 1.experts, 2.experts and 1 more ran "
                                          r"without gradients")

    def expect_counted(self, silence, **options):
        (reasons, views), (others, _) = self.run_attached(silence, **options)
        self.assertEqual({*reasons, *others}, {""})
        self.assertEqual(views["job"]["not_counting_reason"], "")
        self.assertIsNotNone(views["windows"][-1]["balancedness"])

    def test_inference_without_an_optimizer_is_counted(self):
        self.expect_counted(inference, train=0, optimizer=False)

    def test_evaluation_from_the_start_is_told_although_no_state_comes(self):
        (reasons, views), _ = self.run_attached(evaluation, train=0)
        self.assertIsNone(views)
        self.assertEqual(set(reasons[:-1]), {""})
        self.assertRegex(reasons[-1], "NOT_COUNTING: rank 0 has counted no token since it attached; the routers of .* ran without gradients")


if __name__ == "__main__":
    unittest.main(verbosity=2)
