"""Trains the minimal model in rank processes, with the adapter or without it, and shows what came of each expert."""

import os
import pathlib
import re
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "deploy/examples/megatron"), str(ROOT / "tests/client/python")]

import eplb  # noqa: E402
import minimal_distributed as distributed  # noqa: E402
import minimal_megatron as megatron  # noqa: E402
import minimal_optimizer as optimizers  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from eplb_megatron import EplbMegatron  # noqa: E402

TOKENS = 48  # tokens of a rank and a step
PHASE_STEPS = 20  # after which other tokens come, so that other experts are hot


class Training:
    """One rank of a job. ep, pp, etp: sizes of its groups. clip: the gradient norm above which gradients are scaled down.
    sharding: of the experts' optimizer, as distributed.build_experts knows it. options: of megatron.TransformerConfig.

    Pipeline stages train models of their own, without a word between them: what they share is EPLB's job.
    """

    def __init__(self, rank, world, directory, name, ep, order="ep-dp", pp=1, etp=1, adam=optimizers.FusedAdam, clip=0.0,
                 sharding="", **options):
        self.clip, self.sharding = clip, sharding
        dist.init_process_group("gloo", f"file://{directory}/{name}", rank=rank, world_size=world)
        self.rank, self.world, self.config = rank, world, megatron.TransformerConfig(**options)
        self.parallel_state = megatron.ParallelState(ep, order, pp, etp)
        self.model = megatron.Model(self.config, self.parallel_state)
        group = self.parallel_state.get_expert_data_parallel_group()
        self.optimizer = optimizers.build(self.model, adam, sharding and (
            lambda experts: distributed.build_experts(experts, sharding, group)) or None)
        self.balancer, self.losses, self.switches, self.next_step = None, [], [], 0

    def attach(self, **options):
        options.setdefault("vote_every", 2)
        options.setdefault("report_every", 4)
        self.balancer = EplbMegatron.attach([self.model], self.optimizer, parallel_state=self.parallel_state,
                                            first_step=self.next_step, **options)
        return self

    def routers(self):
        return [layer.mlp.router for layer in self.model.layers]

    def run(self, steps, after=None):
        """after(training): once after each optimizer step and before its boundary. A daemon gets some time in each step, and
        more of it until it has moved experts twice, however busy the machine is."""
        wait_for_daemon = self.balancer is not None and bool(self.balancer.client.options.endpoint)
        for _ in range(steps):
            self.forward_backward()
            self.finalize_gradients()
            self.optimizer.step()
            if after is not None:
                after(self)
            for router in self.routers():
                router.update_expert_bias(self.parallel_state.get_data_parallel_group())
            if self.balancer is not None:
                result = self.balancer.step_boundary(self.next_step)
                if result.switched:
                    self.switches.append(self.next_step)
            self.next_step += 1
            if wait_for_daemon:
                time.sleep(0.005 if len(self.switches) >= 2 else 0.2)
        return self

    def sync_params(self):
        """Acts as Megatron does before a forward that overlaps the gathering of weights."""
        if self.sharding.endswith("overlap"):
            self.optimizer.chained_optimizers[1].sync_params()

    def forward_backward(self):
        self.sync_params()
        for parameter in self.model.parameters():
            parameter.grad = None
        hidden, target = batch(self.config, self.next_step, self.rank)
        loss = ((self.model(hidden).float() - target) ** 2).mean()
        (loss + sum(router.aux_loss for router in self.routers())).backward()
        losses = [torch.zeros(()) for _ in range(self.world)]
        dist.all_gather(losses, loss.detach())
        self.losses.append(sum(float(each) for each in losses))

    def finalize_gradients(self):
        """main_grad of each parameter: zeros where no token came, summed over the ranks that hold the parameter."""
        experts, dense = self.parallel_state.copies_group(), self.parallel_state.get_data_parallel_group()
        for name, parameter in self.model.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            optimizers.set_main_grad(parameter, gradient)
            dist.all_reduce(parameter.main_grad, group=experts if ".experts." in name else dense)
            parameter.main_grad /= dist.get_world_size(dense)
        if self.clip:
            self.clip_gradients()

    def clip_gradients(self):
        """Sums as Megatron does: an expert's square is added where the expert is, in the order of slots and then of ranks."""
        squares = {True: torch.zeros(()), False: torch.zeros(())}
        for name, parameter in self.model.named_parameters():
            squares[".experts." in name] += parameter.main_grad.pow(2).sum()
        dist.all_reduce(squares[True], group=self.parallel_state.get_expert_model_parallel_group())
        scale = self.clip / (sum(squares.values()).sqrt() + 1e-6)
        for parameter in self.model.parameters():
            parameter.main_grad *= min(scale, 1.0)

    def parts(self):
        """(layer, local slot, name, tensor) of all that belongs to an expert: weights, masters, state."""
        self.sync_params()
        names = {id(each): name for name, each in self.model.named_parameters() if ".experts." in name}
        experts = [each for name, each in self.model.named_parameters() if ".experts." in name]
        for model, state in self.whole_state(experts).items():
            match = re.fullmatch(r"layers\.(\d+)\.mlp\.experts\.(.+)", names[id(model)])
            tensors = {"weight": model.data, **state}
            of_one = re.fullmatch(r"local_experts\.(\d+)\.(.+)", match[2]) or re.fullmatch(r"()(.+\.weight)(\d+)", match[2])
            for key, tensor in tensors.items():
                if of_one is not None:
                    yield int(match[1]), int(of_one[1] or of_one[3]), f"{of_one[2]}.{key}", tensor
                    continue
                rows = tensor.view(self.model.layers[int(match[1])].mlp.num_local_experts, -1)
                for slot, row in enumerate(rows):
                    yield int(match[1]), slot, f"{match[2]}.{key}", row

    def whole_state(self, experts):
        """{parameter: {key: all elements}} of masters and moments, from all ranks that hold a part of them."""
        leaf = self.optimizer.chained_optimizers[1]
        if self.sharding:
            return distributed.gathered(experts, leaf, self.parallel_state.get_expert_data_parallel_group())
        return {model: {"param": main.data, **{key: each for key, each in leaf.optimizer.state[main].items() if each.dim() > 0}}
                for model, main in leaf.masters()}

    def by_expert(self):
        """{(layer, expert, name): elements} of all ranks; copies of an expert must agree to the bit."""
        per_rank, num_layers = self.model.layers[0].mlp.num_local_experts, self.config.num_layers
        first = self.parallel_state.get_expert_model_parallel_rank() * per_rank
        stage, num_stages = self.parallel_state.pipeline_stage, self.parallel_state.pipeline_parallel_size
        experts = np.tile(np.arange(self.config.num_moe_experts), (num_layers * num_stages, 1))
        if self.balancer is not None:
            experts = self.balancer.client.placement.physical_to_logical_map
        mine = {(stage * num_layers + layer, int(experts[stage * num_layers + layer, first + slot]), name):
                tensor.float().flatten().numpy().copy() for layer, slot, name, tensor in self.parts()}
        everywhere = [None] * self.world
        dist.all_gather_object(everywhere, mine)
        found = {}
        for part in everywhere:
            for key, value in part.items():
                assert found.setdefault(key, value).tobytes() == value.tobytes(), f"copies differ in {key}"
        return found

    def dense(self):
        """Tensors of no expert: equal on all ranks."""
        found = {}
        inner = self.optimizer.chained_optimizers[0].optimizer
        for number, router in enumerate(self.routers()):
            found[f"router.{number}"], found[f"bias.{number}"] = router.weight, router.expert_bias
            for key, value in inner.state[router.weight].items():
                found[f"router.{number}.{key}"] = value
        return found

    def set_adam_step(self, step):
        for each in self.optimizer.chained_optimizers:
            for group in each.param_groups:
                group["step"] = step

    def result(self):
        """Picklable: for the process of the test."""
        found = {"losses": self.losses, "switches": self.switches, "experts": self.by_expert(), "step": self.next_step}
        if self.balancer is not None:
            found["slots"] = self.balancer.client.placement.physical_to_logical_map.copy()
            hidden, _ = batch(self.config, self.next_step, self.rank)
            self.sync_params()
            before = self.model(hidden)
            self.balancer.close()
            # Bits, as what was trained with foreign moments may be no number.
            assert torch.equal(self.model(hidden).float().view(torch.int32), before.float().view(torch.int32)), \
                "close has changed what the model computes"
        return found


def batch(config, step, rank):
    """(hidden [tokens, 1, hidden], target) of a rank: a function of the step; its kind of tokens changes by phases."""
    kinds = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
    centre = torch.randn(3, config.hidden_size, generator=kinds) * 2
    generator = torch.Generator().manual_seed(1000 * step + rank)
    kind = torch.randint(3, (TOKENS,), generator=generator)
    hidden = centre[kind] + torch.randn(TOKENS, config.hidden_size, generator=generator) * 0.3
    return hidden.unsqueeze(1).to(config.params_dtype), hidden.unsqueeze(1).roll(1, dims=-1)


def plain(rank, world, directory, name, steps, options):
    """Without EPLB."""
    return Training(rank, world, directory, name, **options).run(steps).result()


def moved(rank, world, directory, name, steps, options, connecting, after=None):
    """With EPLB and, usually, a daemon."""
    training = Training(rank, world, directory, name, **options).attach(**connecting)
    return training.run(steps, after=after).result()


def forget(this, ending):
    """The adapter without the tensors of some names."""
    def find(found=this.balancer._finder.find):
        holdings = found()
        holdings.tensors = [each for each in holdings.tensors if not ending or not each.name.endswith(ending)]
        return holdings

    this.balancer._finder.find = find


def differing(one, other):
    """Names of the experts' tensors that are not equal to the bit."""
    assert one.keys() == other.keys(), sorted(set(one) ^ set(other))[:5]
    return sorted({key[2] for key in one if one[key].tobytes() != other[key].tobytes()})


__all__ = ["Training", "batch", "differing", "eplb", "moved", "plain"]
