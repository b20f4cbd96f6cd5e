"""A vote with a slow rank: signal handlers run while it waits, and after it failed all experts can be saved."""

import os
import signal
import threading
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import eplb.torch  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from checkpoint_test import write_placement  # noqa: E402
from torch import nn  # noqa: E402

LOCAL, WIDTH = 4, 3
SLOW = 2.5 * ranks.PATIENCE  # seconds by which rank 1 is late
SOON = 1.0 * ranks.PATIENCE  # seconds within which a handler runs


class Layer(nn.Module):
    def __init__(self, layer, rank):
        super().__init__()
        self.router = nn.Linear(WIDTH, 2 * LOCAL)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LOCAL))
        for local, expert in enumerate(self.experts):
            nn.init.constant_(expert.weight, 100 * layer + rank * LOCAL + local)


class Trainer:
    """Experts in falling order from the start, and the values that each must have in its own slot."""

    def __init__(self, rank, placement, vote_deadline):
        self.rank, self.model = rank, nn.Sequential(Layer(0, rank), Layer(1, rank))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.5)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0)
        self.optimizer.step()
        for number, parameter in enumerate(self.model.parameters()):
            self.optimizer.state[parameter]["step"] += 10 * number + 100 * rank
        self.expected = self.values()
        self.attached = eplb.torch.attach(self.model, self.optimizer, experts=nn.ModuleList, router="router", vote_every=1,
                                          initial_placement=placement, vote_deadline=vote_deadline, check_batch=False)
        assert self.values() != self.expected

    def values(self):
        return [[parameter.tolist(), *(each.tolist() for each in self.optimizer.state[parameter].values())]
                for layer in self.model for parameter in layer.experts.parameters()]

    def vote(self, late):
        if late:
            time.sleep(SLOW)
        self.optimizer.step()  # with gradients of zero, so that nothing but its count changes
        return self.attached.step_boundary()

    def expect_saved(self):
        """Saves as after a failed vote, twice, and detaches."""
        moved = self.values()
        for _ in range(2):
            with self.attached.static_order():
                assert self.values() == self.expected
                assert self.model.state_dict() and self.optimizer.state_dict()
            assert self.values() == moved
        self.attached.detach()
        assert self.values() == self.expected


def kill_myself(number):
    """Sends a signal to this process while a vote waits. returns: the time at which it was sent."""
    sent = []

    def send():
        time.sleep(0.3)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    return sent


def fail(rank, placement):
    trainer = Trainer(rank, placement, vote_deadline=SLOW / 3)
    for parameter in trainer.model.parameters():
        parameter.grad = None
    try:
        trainer.vote(late=rank == 1)
    except eplb.Aborted as error:
        assert "attached.static_order()" in str(error), error
        assert trainer.attached.client.ended is not None
    else:
        raise AssertionError("the vote did not fail")
    trainer.expect_saved()


def handle(rank, placement):
    """A handler that raises nothing: attach and the vote go on."""
    ran, sent = [], []
    if rank == 0:
        signal.signal(signal.SIGTERM, lambda *_: ran.append(time.monotonic()))
        sent.append(kill_myself(signal.SIGTERM))
    else:
        time.sleep(SLOW)
    trainer = Trainer(rank, placement, vote_deadline=20 * SLOW)
    for parameter in trainer.model.parameters():
        parameter.grad = None
    if rank == 0:
        sent.append(kill_myself(signal.SIGTERM))
    assert trainer.vote(late=rank == 1).voted
    assert len(ran) == len(sent) and all(at - each[0] < SOON for at, each in zip(ran, sent)), (sent, ran)
    trainer.expect_saved()


def interrupt(rank, placement):
    """KeyboardInterrupt on one rank ends the vote on both."""
    trainer = Trainer(rank, placement, vote_deadline=20 * SLOW)
    for parameter in trainer.model.parameters():
        parameter.grad = None
    try:
        if rank == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sent = kill_myself(signal.SIGINT)
        trainer.vote(late=rank == 1)
    except KeyboardInterrupt as error:
        assert rank == 0 and time.monotonic() - sent[0] < SOON
        assert isinstance(error.__cause__, eplb.Aborted), error.__cause__
    except eplb.Aborted as error:
        assert rank == 1 and "rank 0 is missing: its wait was interrupted: KeyboardInterrupt" in str(error), error
    else:
        raise AssertionError("the vote did not fail")
    trainer.expect_saved()


def in_turn(rank, directory, placement):
    dist.init_process_group("gloo", f"file://{directory}/torch", rank=rank, world_size=2)
    for part in (fail, handle, interrupt):
        part(rank, placement)


class FailedVoteTest(ranks.RankTest):
    def test_handlers_run_and_experts_are_saved(self):
        placement = write_placement(self.directory, 2, list(range(8))[::-1])
        self.succeed(2, in_turn, self.directory, str(placement))


if __name__ == "__main__":
    unittest.main()
