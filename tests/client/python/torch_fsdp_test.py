"""eplb.torch.attach with FSDP2 over expert parallelism: equal to the bit with experts that move."""

import hashlib
import os
import time
import unittest

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import eplb  # noqa: E402
import eplb.torch  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch_trainer import EXPERTS, HIDDEN, LAYERS, WIDTH, Gather, Scatter, batch  # noqa: E402

from eplb._rows import is_dtensor, local_of  # noqa: E402

STEPS, SWITCHES = 75, 3


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.register_buffer("load", torch.zeros(EXPERTS))

    def forward(self, x):
        weights, chosen = self.gate(x).float().softmax(dim=1).topk(2, dim=1)
        self.load += torch.bincount(chosen.flatten(), minlength=EXPERTS)
        return weights, chosen


class Experts(nn.Module):
    """The experts of one EP rank in stacks, which FSDP2 unshards for the forward."""

    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.3)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * 0.3)

    def forward(self, x, weights, chosen, rank):
        w1, w2 = (each.to_local() if is_dtensor(each) else each for each in (self.w1, self.w2))
        out = torch.zeros(x.shape)
        for slot in range(len(w1)):
            hit = chosen == rank * len(w1) + slot
            rows = hit.any(dim=1).nonzero().flatten()
            done = nn.functional.gelu(x[rows].to(w1.dtype) @ w1[slot]) @ w2[slot]
            out = out.index_add(0, rows, (weights * hit).sum(dim=1)[rows, None] * done.float())
        return out


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.norm, self.router, self.experts = group, nn.LayerNorm(WIDTH), Router(), Experts()

    def forward(self, x):
        weights, chosen = self.router(self.norm(x))
        gathered = [Gather.apply(self.group, each.float() if each.is_floating_point() else each) for each in (x, weights, chosen)]
        return x + Scatter.apply(self.group, self.experts(*gathered, dist.get_rank(self.group))).to(x.dtype)


def build(copies, order, reshard, is_bf16, is_plain=False):
    """copies: ranks that share each EP rank's experts. order: of the mesh. is_plain: stacks are plain tensors of the local experts
    before fully_shard, otherwise DTensors of all. returns: (model, the EP group)."""
    sizes = {"efsdp": copies, "ep": dist.get_world_size() // copies}
    mesh = init_device_mesh("cpu", tuple(sizes[name] for name in order), mesh_dim_names=order)
    everyone = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if is_bf16 else MixedPrecisionPolicy()
    options = {"reshard_after_forward": reshard, "mp_policy": precision}
    torch.manual_seed(5)
    model = nn.Sequential(*(Block(mesh["ep"].get_group()) for _ in range(LAYERS)))
    for block in model:
        for name, parameter in list(block.experts.named_parameters()):
            sharded = distribute_tensor(parameter.data, mesh["ep"], [Shard(0)])
            setattr(block.experts, name, nn.Parameter(sharded.to_local() if is_plain else sharded))
        fully_shard(block.experts, mesh=mesh["efsdp"], **options)
        if copies > 1:
            block.experts.set_gradient_divide_factor(1.0)
            block.experts.set_force_sum_reduction_for_comms(True)
        fully_shard(block, mesh=everyone, **options)
    return fully_shard(model, mesh=everyone, **options), mesh["ep"].get_group()


def loss_of(model, step, rank):
    x, target = batch(step, rank)
    return ((model(x) - target) ** 2).mean()


def train(rank, case, endpoint=None):
    """returns: losses of steps and evaluations, digests of all tensors of this rank, and the number of switches."""
    model, ep_group = build(*case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    attached, losses, switches = None, [], 0
    if endpoint is not None:
        attached = eplb.torch.attach(model, optimizer, experts="*.experts", router="router", ep_group=ep_group, endpoint=endpoint,
                                     job="-".join(map(str, case)).translate(str.maketrans("(),' ", "_____")), vote_every=2, report_every=4,
                                     check_batch=batch(3000, rank)[0])
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % 3 == 1:  # leaves unsharded parameters behind unless reshard
            with torch.no_grad():
                losses.append(float(loss_of(model.eval(), 1000 + step, rank)))
            model.train()
        if attached is not None:
            time.sleep(0.01 if switches >= SWITCHES else 0.1 if switches else 0.3)
            switches += attached.step_boundary().switched
            if step == STEPS // 2:
                with attached.static_order(), torch.no_grad():
                    losses.append(float(loss_of(model, 2000, rank)))
        elif step == STEPS // 2:
            with torch.no_grad():
                losses.append(float(loss_of(model, 2000, rank)))
    if attached is not None:
        attached.check()
        attached.detach()
    return losses, digests_of(model, optimizer), switches


def digests_of(model, optimizer):
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    tensors = dict(model.named_buffers())
    for name, parameter in model.named_parameters():
        tensors[name] = parameter
        tensors.update((f"{name}/{key}", value) for key, value in optimizer.state[parameter].items())
    return {name: hashlib.sha256(local_of(each).detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
            for name, each in tensors.items()}


def both(rank, world, directory, cases, endpoint):
    dist.init_process_group("gloo", f"file://{directory}/{world}", rank=rank, world_size=world)
    return [(train(rank, case), train(rank, case, endpoint)) for case in cases]


ORDER = ("efsdp", "ep")
VARIANTS = [(reshard, is_bf16) for reshard in (True, False) for is_bf16 in (False, True)]
# Arguments of build, by number of ranks.
CASES = {2: [(1, ORDER, *variant) for variant in VARIANTS],
         4: [*((2, ORDER, *variant) for variant in VARIANTS), (2, ORDER[::-1], False, False), (2, ORDER, False, False, True)]}


class FsdpTest(ranks.RankTest):
    def expect_equal(self, world, cases):
        daemon = self.start_daemon()
        results = self.succeed(world, both, world, self.directory, cases, f"127.0.0.1:{daemon.grpc_port}",
                               seconds=len(cases) * ranks.DEADLINE)
        for rank, of_rank in enumerate(results):
            for case, ((losses, tensors, _), (moved_losses, moved_tensors, switches)) in zip(cases, of_rank):
                print(f"{world} ranks, {case}, rank {rank}: {switches} switches", flush=True)
                with self.subTest(case=case, rank=rank):
                    self.assertEqual(losses, moved_losses)
                    self.assertEqual(tensors, moved_tensors)
                    self.assertGreaterEqual(switches, SWITCHES)

    def test_two_ranks_for_each_expert_in_bf16(self):
        self.expect_equal(4, [(2, ORDER, False, True)])

    def test_one_rank_for_each_expert(self):
        self.expect_equal(2, CASES[2])

    def test_two_ranks_for_each_expert(self):
        self.expect_equal(4, CASES[4])


if __name__ == "__main__":
    unittest.main()
