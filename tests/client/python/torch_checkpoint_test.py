"""torch.distributed.checkpoint while experts are moved: no bit unlike a run without EPLB, on as many, twice and half the ranks."""

import os
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import eplb.torch  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch_fsdp_test import ORDER, batch, build, digests_of, loss_of  # noqa: E402

STEPS, SAVED_AT, WAIT = 40, 30, 1.0


class Trainer:
    """A rank. copies: ranks that share each expert. job: of an attached trainer with `endpoint`; None: without EPLB."""

    def __init__(self, rank, copies, endpoint=None, job=None):
        self.rank, self.losses, self.step = rank, [], 0
        self.model, ep_group = build(copies, ORDER, True, False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.attached = None if job is None else eplb.torch.attach(
            self.model, self.optimizer, experts="*.experts", router="router", ep_group=ep_group, endpoint=endpoint, job=job,
            vote_every=2, report_every=4, check_batch=batch(3000, rank)[0])

    def train(self, until):
        while self.step < until:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, self.step, self.rank)
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))
            self.step += 1
            if self.attached is not None:
                is_decided = self.step % 4 == 0 and not self.attached.client.placement.version
                time.sleep(WAIT if is_decided else 0)
                self.attached.step_boundary()
        return self

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer}

    def load(self, path):
        state = self.state()
        dcp.load(state, checkpoint_id=str(path))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])

    def is_moved(self):
        return any(self.attached._moved(layer) is not None for layer in self.attached.layers)

    def end(self):
        """Returns digests of all tensors."""
        if self.attached is not None:
            self.attached.detach()
        return digests_of(self.model, self.optimizer)


def expect_named_by_expert(attached):
    """named_expert_parameters of all ranks together are the same while experts are moved and in static order."""
    def named():
        mine, of_all = {each[:2]: each[2].clone() for each in attached.named_expert_parameters()}, [None] * dist.get_world_size()
        dist.all_gather_object(of_all, mine)
        return mine, {key: value for each in of_all for key, value in each.items()}

    here, moved = named()
    with attached.static_order():
        own, static = named()
    assert sorted(moved) == sorted(static) and (set(here) != set(own) or dist.get_rank())
    for key, value in static.items():
        assert torch.equal(value, moved[key]), key


def save(rank, world, directory, endpoint):
    """returns: losses and digests of a run without EPLB and of one with it; both have saved, the second also from a thread."""
    dist.init_process_group("cpu:gloo", f"file://{directory}/save", rank=rank, world_size=world)
    found = []
    for name, job in (("plain", None), ("moved", "save")):
        trainer = Trainer(rank, 2, endpoint, job).train(SAVED_AT)
        dcp.save(trainer.state(), checkpoint_id=str(directory / name))
        if job:
            assert trainer.is_moved()
            later = dcp.async_save(trainer.state(), checkpoint_id=str(directory / "thread"), process_group=dist.new_group())
        trainer.train(STEPS)
        if job:
            later.result(timeout=60)
            assert trainer.is_moved()
            expect_named_by_expert(trainer.attached)
            refused = []
            for use in (lambda value: value.full_tensor(), lambda value: value + value, lambda value: torch.save(value, os.devnull)):
                try:
                    use(trainer.model.state_dict()["0.experts.w1"])
                except eplb.FailedPrecondition as error:
                    refused.append(str(error))
            kept = trainer.state()
            with trainer.attached.static_order():
                try:
                    dcp.save(kept, checkpoint_id=str(directory / "kept"))
                except (eplb.FailedPrecondition, dcp.api.CheckpointException) as error:
                    assert "experts have moved since this state dict was taken" in str(error), error
                else:
                    raise AssertionError("a state dict of an earlier placement was written")
            assert len(refused) == 3 and all("with attached.static_order():" in each for each in refused), refused
        found.append((trainer.losses, trainer.end()))
    return found


def load(rank, world, directory, copies, endpoint):
    """returns: digests after loading what the run without EPLB has saved, and what the other has; on as many ranks as have saved
    also into experts that are moved."""
    dist.init_process_group("cpu:gloo", f"file://{directory}/load{world}", rank=rank, world_size=world)
    found = []
    for name in ("plain", "moved", "thread"):
        trainer = Trainer(rank, copies).train(1)
        trainer.load(directory / name)
        found.append(trainer.end())
    for name in ("plain", "moved") if world == 4 else ():
        trainer = Trainer(rank, copies, endpoint, f"load-{name}")
        while not trainer.is_moved():
            trainer.train(trainer.step + 1)
        trainer.load(directory / name)
        found.append(trainer.end())
    return found


class CheckpointTest(ranks.RankTest):
    def test_saved_while_moved_and_loaded_on_other_numbers_of_ranks(self):
        endpoint = f"127.0.0.1:{self.start_daemon().grpc_port}"
        for plain, moved in self.succeed(4, save, 4, self.directory, endpoint, seconds=2 * ranks.DEADLINE):
            self.assertEqual(plain, moved)
        for world, copies in ((2, 1), (4, 2), (8, 2)):
            for found in self.succeed(world, load, world, self.directory, copies, endpoint, seconds=3 * ranks.DEADLINE):
                for each in found[1:]:
                    self.assertEqual(each, found[0])


if __name__ == "__main__":
    unittest.main()
