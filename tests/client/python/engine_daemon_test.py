"""eplb.vllm and eplb.sglang in 4 processes with gloo that ask an eplbd, which is killed and started again between questions."""

import json
import threading
import time
import types

import torch
import torch.distributed as dist

import engine_stand_ins
import ranks
from engine_ranks_test import LOADS, START, TIMEOUT, WORLD, Lines, Sglang, Vllm, begin

HOT, OTHER = LOADS[1], LOADS[2]


def serve(rank, kind, port, directory, endpoint, loads, stages, late):
    """Runs one rank of an engine, which asks question i once there is a file of this number. late: rank and question where it is
    late. Returns its maps and log."""
    begin(rank, port)
    groups = [dist.new_group(stage) for stage in stages]
    number = next(number for number, stage in enumerate(stages) if rank in stage)
    log, engine = Lines(), kind(groups[number])
    if len(stages) > 1:
        stage = types.SimpleNamespace(rank_in_group=number, world_size=len(stages))
        engine_stand_ins.module("vllm.distributed.parallel_state", get_pp_group=lambda: stage)
    engine.register(endpoint=endpoint, job="chat", timeout=TIMEOUT)
    maps = []
    for question, load in enumerate(loads):
        ranks.harness.wait_for((directory / str(question)).exists, 60, f"question {question}")
        dist.barrier()
        time.sleep(1.5 * TIMEOUT if (rank, question) == late else 0)
        maps.append(engine.ask(torch.tensor(load)))
        dist.barrier()
        (directory / f"{question}.asked").touch()
    return maps, log.lines


class Cases:
    def setUp(self):
        super().setUp()
        self.daemon = ranks.harness.Daemon(self.directory, policy_every=1, config="min_gain = 0.01\n")
        self.daemon.start()
        self.addCleanup(self.daemon.kill)

    def serve(self, loads, before=None, stages=(range(WORLD),), late=None):
        """Returns what `serve` returns on all ranks. before: what to do before a question, by its number."""
        def ask():
            for question in range(len(loads)):
                (before or {}).get(question, lambda: None)()
                (self.directory / str(question)).touch()
                ranks.harness.wait_for((self.directory / f"{question}.asked").exists, 60, f"answer {question}")

        asking = threading.Thread(target=ask)
        asking.start()
        self.addCleanup(asking.join)
        return self.succeed(WORLD, serve, self.KIND, ranks.harness.free_port(), self.directory, self.daemon.endpoint, loads, stages,
                            late)

    def shown(self, what):
        """Returns a document of the daemon."""
        return json.loads(self.daemon.get(f"api/v1/jobs/{what}"))

    def test_ranks_agree_while_the_daemon_is_killed_and_started_again(self):
        found = self.serve([0 * HOT, HOT, OTHER, OTHER, OTHER, OTHER], {2: self.daemon.kill, 4: self.daemon.start})
        maps = found[0][0]
        for rank, (each, log) in enumerate(found):
            self.assertEqual(each, maps)
            self.assertEqual([line.partition(": ")[2] for line in log], [] if rank else [
                f"the placement stays as it is: eplbd at {self.daemon.endpoint}: connection refused", "balances again"])
        self.assertEqual(maps[0], START.tolist())
        self.assertNotEqual(maps[1], maps[0])
        self.assertEqual(maps[2:4], [maps[1]] * 2)
        self.assertNotEqual(maps[4], maps[3])
        self.assertEqual(self.shown("chat-2x8/placement")["placement"]["physical_to_logical_map"], maps[-1])
        for command, text in (("status", f"{self.NAME} asks for placements; a step is a question"), ("get plans", "committed"),
                              ("explain", "Job chat-2x8: IDLE"), ("doctor --all", f"{self.NAME} asks for 4 GPUs, at question 6")):
            told = ranks.harness.eplbctl(*command.split(), "--job", "chat-2x8", "--endpoint", self.daemon.endpoint)
            self.assertIn(text, " ".join(told.stdout.split()))

    def test_a_placement_that_a_rank_did_not_acknowledge_is_not_taken(self):
        found = self.serve([HOT, OTHER, OTHER, OTHER], late=(2, 1))
        maps, log = found[0]
        self.assertEqual([each[0] for each in found], [maps] * WORLD)
        self.assertEqual(maps[1], maps[0])
        self.assertNotEqual(maps[-1], maps[0])  # the daemon waits for a question before it tries again
        self.assertEqual(len(log), 2)
        plans = self.shown("chat-2x8/plans")["plans"]
        self.assertEqual([each["result"] for each in plans][::-1], ["committed", "withdrawn", "committed"])
        self.assertIn("rank 2 of 4 did not acknowledge rank 0's placement", plans[1]["reason"])


class VllmTest(Cases, ranks.RankTest):
    KIND, NAME = Vllm, "vLLM"

    def test_models_and_pipeline_stages_are_jobs(self):
        found = self.serve([HOT, HOT[:1], OTHER], stages=((0, 1), (2, 3)))
        for stage in (0, 1):
            maps = found[2 * stage][0]
            self.assertEqual([found[2 * stage + 1][0], [len(each) for each in maps]], [maps, [2, 1, 2]])
            for model, newest in (("2x8", maps[2]), ("1x8", maps[1])):
                job = f"chat-{model}-stage{stage}"
                self.assertEqual(self.shown(f"{job}/placement")["placement"]["physical_to_logical_map"], newest)
                self.assertGreater(self.shown(job)["version"], 0)
            self.assertEqual([each[1] for each in found], [[]] * WORLD)


class SglangTest(Cases, ranks.RankTest):
    KIND, NAME = Sglang, "SGLang"


if __name__ == "__main__":
    ranks.unittest.main()
