"""eplb.torch.attach in a trainer that was not written for it: equal to the bit with experts that move."""

import contextlib
import os
import pathlib
import re
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import numpy as np  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_trainer as trainers  # noqa: E402

STEPS = 60


def give_time(trainer):
    """A daemon decides beside the steps, however busy the machine is."""
    if trainer.attached is not None:
        time.sleep(0.01 if len(trainer.switches) >= 3 else 0.1 if trainer.switches else 0.3)


def plain(rank, world, directory, name, options, steps=STEPS, after=None):
    return trainers.Trainer(rank, world, directory, name, **options).run(steps, after).result()


def moved(rank, world, directory, name, endpoint, options, steps, after, boundary):
    def between(trainer):
        give_time(trainer)
        if after is not None:
            after(trainer)

    attach = {"endpoint": endpoint, "job": name, "vote_every": 2, "report_every": 4, "boundary": boundary}
    return trainers.Trainer(rank, world, directory, name, eplb=attach, **options).run(steps, between).result()


def convert_at_step_5(trainer):
    if trainer.step in (5, 33):
        trainer.model.to(torch.float64).to(torch.float32)
    if trainer.step == 20 and trainer.attached is not None:
        assert trainer.attached.num_adopted > 0


def reload_state(trainer):
    if trainer.step in (5, 33):
        with contextlib.ExitStack() as stack:
            if trainer.attached is not None:
                stack.enter_context(trainer.attached.static_order())
            trainer.optimizer.load_state_dict(trainer.optimizer.state_dict())


def other_steps(trainer):
    """Gives each expert's optimizer state another step, as if experts without tokens had been left out."""
    if trainer.step == 0:
        for layer, block in enumerate(trainer.model):
            for local, expert in enumerate(block.moe.experts.deepspeed_experts):
                for parameter in expert.parameters():
                    trainer.optimizer.state[parameter]["step"] += 3 * layer + trainer.first + local


def disabled(rank, directory):
    os.environ["EPLB_DISABLE"] = "1"
    trainer = trainers.Trainer(rank, 1, directory, "disabled", eplb={})
    dictionary, step = dict(trainer.optimizer.__dict__), trainer.optimizer.step
    trainer.run(3)
    attached = trainer.attached
    with attached.static_order():
        trainer.optimizer.state_dict()
    attached.check()
    attached.check_experts()
    attached.detach()
    attached.close()
    assert attached.client is None and not attached.layers and trainer.optimizer.step == step
    assert dictionary.keys() == trainer.optimizer.__dict__.keys()
    assert not any(module._forward_hooks or module._state_dict_hooks for module in trainer.model.modules())


def refusal_of(call):
    try:
        call()
    except eplb.FailedPrecondition as error:
        return str(error)
    return "nothing was refused"


def save_moved(rank, directory, endpoint):
    options = {"endpoint": endpoint, "job": "refused", "vote_every": 2, "report_every": 4}
    trainer = trainers.Trainer(rank, 2, directory, "refused", eplb=options).run(STEPS, give_time)
    trainer.attached.check()
    trainer.attached.check_experts()
    slots = trainer.attached.client.placement.physical_to_logical_map
    layer, slot = next((layer, slot) for layer in range(trainers.LAYERS) for slot in range(4)
                       if slots[layer, 4 * rank + slot] != 4 * rank + slot)
    expert = trainer.model[layer].moe.experts.deepspeed_experts[slot]
    client = trainer.attached.client
    assert "use attached.static_order()" in refusal_of(lambda: client.carry("static"))
    try:
        with trainer.attached.static_order():
            assert (client.row_placement.physical_to_logical_map == np.arange(8)).all()
            if rank == 0:
                raise OSError("disk full")
    except OSError:
        pass
    assert (client.row_placement.physical_to_logical_map == slots).all()
    with trainer.attached.static_order():
        state, whole, single = trainer.optimizer.state_dict(), trainer.model.state_dict(), expert.state_dict()
    found = [refusal_of(call) for call in (
        trainer.model.state_dict, lambda: trainer.model.load_state_dict(whole), expert.state_dict,
        lambda: expert.load_state_dict(single), trainer.optimizer.state_dict)]
    assert "numbers the state" in refusal_of(lambda: trainer.optimizer.load_state_dict(state))
    dist.barrier()
    trainer.attached.detach()
    assert sorted(whole) == sorted(trainer.model.state_dict())
    return found


def save_in_static_order(rank, directory, endpoint):
    options = {"endpoint": endpoint, "job": "same", "vote_every": 2, "report_every": 4}
    trainer = trainers.Trainer(rank, 2, directory, "saving", eplb=options).run(STEPS, give_time)
    assert trainer.switches
    name, _, _ = next(trainer.attached.named_expert_parameters())
    assert name == "0.moe.experts.deepspeed_experts.{}.0.weight", name
    moved = {(name, expert): value.clone() for name, expert, value in trainer.attached.named_expert_parameters()}
    with trainer.attached.static_order():
        trainer.save(str(directory))
        for name, expert, value in trainer.attached.named_expert_parameters():
            assert torch.equal(value, moved.pop((name, expert), value))
    assert moved, "no expert was moved from its rank"
    trainer.attached.close()
    size = (directory / "layer_0_expert_0.pt").stat().st_size
    assert size < 6000, f"a file of one expert has {size} bytes, those of all local experts"


def resume(rank, directory, name, endpoint):
    trainer = trainers.Trainer(rank, 2, directory, f"resume-{name}").load(str(directory))
    if endpoint is not None:
        trainer.attach({"endpoint": endpoint, "job": name, "vote_every": 2, "report_every": 4})
    result = trainer.run(STEPS, give_time).result()
    assert endpoint is None or result["switches"]
    return result


class AttachTestCase(ranks.RankTest):
    def setUp(self):
        super().setUp()
        daemon = self.start_daemon()
        self.endpoint = f"127.0.0.1:{daemon.grpc_port}"



class AttachTest(AttachTestCase):
    def expect_equal(self, world=2, steps=STEPS, after=None, least=3, boundary="call", **options):
        still = self.succeed(world, plain, world, self.directory, "plain", options, steps, after)
        moving = self.succeed(world, moved, world, self.directory, "moved", self.endpoint, options, steps, after,
                              boundary)
        self.assertGreaterEqual(len(moving[0]["switches"]), least, moving[0]["switches"])
        for one, other in zip(still, moving):
            self.assertEqual(one["losses"], other["losses"])
            self.assertEqual(sorted(one["tensors"]), sorted(other["tensors"]))
            differing = [name for name, value in one["tensors"].items() if value != other["tensors"][name]]
            self.assertEqual(differing, [])
        return moving

    def test_adamw_on_two_ranks(self):
        self.expect_equal()

    def test_two_choices_of_each_token(self):
        self.expect_equal(k=2)

    def test_dropped_tokens_and_foreach(self):
        self.expect_equal(drop=True, adam={"foreach": True, "amsgrad": True})

    def test_accumulated_gradients(self):
        self.expect_equal(accumulate=3)

    def test_two_ep_groups_of_two_ranks(self):
        self.expect_equal(world=4, ep=2)

    def test_momentum(self):
        self.expect_equal(make=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))

    def test_the_model_converted_and_back_between_two_steps(self):
        self.expect_equal(after=convert_at_step_5)

    def test_optimizer_state_loaded_anew_between_two_steps(self):
        self.expect_equal(after=reload_state)

    def test_the_optimizers_step_is_the_boundary(self):
        self.expect_equal(after=None, boundary="optimizer")

    def test_steps_that_differ_by_expert_move_with_them(self):
        self.expect_equal(after=other_steps)

    def test_lines_of_eplb_in_the_trainer(self):
        text = pathlib.Path(trainers.__file__).read_text(encoding="utf-8")
        parts = re.findall(r"# EPLB\n(.*?)# end of EPLB", text, re.S)
        lines = [line for part in parts for line in part.splitlines() if line.strip()]
        self.assertEqual(len(parts), 2)
        self.assertLessEqual(len(lines), 15, lines)


class DisabledTest(ranks.RankTest):
    def test_nothing_is_done(self):
        self.succeed(1, disabled, self.directory)


class CheckpointTest(AttachTestCase):
    def test_a_native_save_of_moved_experts_is_refused(self):
        for result in self.succeed(2, save_moved, self.directory, self.endpoint):
            self.assertEqual(len(result), 5)
            for text in result:
                self.assertIn("with attached.static_order():", text)

    def test_saved_in_static_order_and_resumed_with_and_without(self):
        whole = self.succeed(2, plain, 2, self.directory, "whole", {}, 2 * STEPS)
        self.succeed(2, save_in_static_order, self.directory, self.endpoint)
        for name, endpoint in (("without", None), ("same", self.endpoint), ("other", self.endpoint)):
            resumed = self.succeed(2, resume, self.directory, name, endpoint)
            for one, other in zip(whole, resumed):
                self.assertEqual(one["losses"][STEPS:], other["losses"], name)
                self.assertEqual(one["tensors"], other["tensors"], name)


if __name__ == "__main__":
    unittest.main()
