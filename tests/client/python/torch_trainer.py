"""A trainer of mixtures of experts in the manner of DeepSpeed: a module for each expert, its own gate, all-to-all and
checkpoint files of single experts. What it knows of EPLB stands between two markers, and the test counts these lines."""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HIDDEN, EXPERTS, LAYERS, TOKENS, PHASE_STEPS = 12, 20, 8, 2, 40, 15


class TopKGate(nn.Module):
    """[tokens, width] -> (auxiliary loss, combine weights, dispatch mask, counts), [tokens, experts, capacity] each of the two."""

    def __init__(self, k, drop):
        super().__init__()
        self.wg, self.k, self.drop = nn.Linear(WIDTH, EXPERTS, bias=False), k, drop

    def forward(self, x):
        affinity = self.wg(x).softmax(dim=1)
        weights, chosen = affinity.topk(self.k, dim=1)
        weights = weights / weights.sum(dim=1, keepdim=True)
        masks = [nn.functional.one_hot(chosen[:, i], EXPERTS) for i in range(self.k)]
        counts = sum(mask.sum(dim=0) for mask in masks)
        auxiliary = EXPERTS * (affinity.mean(dim=0) * masks[0].float().mean(dim=0)).sum()
        capacity = 2 * TOKENS * self.k // EXPERTS if self.drop else TOKENS * self.k
        before, combine = torch.zeros(EXPERTS, dtype=torch.int64), 0
        for i, mask in enumerate(masks):
            place = (mask.cumsum(dim=0) - 1 + before) * mask
            kept = mask * (place < capacity)
            before = before + mask.sum(dim=0)
            at = nn.functional.one_hot(place.sum(dim=1).clamp(max=capacity - 1), capacity).float()
            combine = combine + (weights[:, i:i + 1] * kept).unsqueeze(2) * at.unsqueeze(1)
        return auxiliary, combine, combine.bool(), counts


class Gather(torch.autograd.Function):
    """[tokens, ..] -> those of all ranks of the group."""

    @staticmethod
    def forward(context, group, mine):
        context.group = group
        found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, mine.contiguous(), group=group)
        return torch.cat(found)

    @staticmethod
    def backward(context, gradient):
        return None, Scatter.apply(context.group, gradient)


class Scatter(torch.autograd.Function):
    """[tokens of all ranks, ..] -> the sum over the ranks, for the tokens of this one."""

    @staticmethod
    def forward(context, group, whole):
        context.group = group
        total = whole.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()

    @staticmethod
    def backward(context, gradient):
        return None, Gather.apply(context.group, gradient)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(context, group, rows):
        context.group = group
        arrived = torch.empty_like(rows)
        dist.all_to_all_single(arrived, rows.contiguous(), group=group)
        return arrived

    @staticmethod
    def backward(context, gradient):
        return None, AllToAll.apply(context.group, gradient)


class Experts(nn.Module):
    """[EP ranks, local experts, capacity, width] -> the same."""

    def __init__(self, count):
        super().__init__()
        self.deepspeed_experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(count))

    def forward(self, x):
        return torch.cat([expert(each) for each, expert in zip(x.chunk(len(self.deepspeed_experts), dim=1),
                                                               self.deepspeed_experts)], dim=1)


class MoELayer(nn.Module):
    def __init__(self, group, k, drop):
        super().__init__()
        self.group, self.ep = group, dist.get_world_size(group)
        self.gate, self.experts = TopKGate(k, drop), Experts(EXPERTS // self.ep)

    def forward(self, x):
        self.auxiliary, combine, mask, self.counts = self.gate(x)
        leaving = torch.einsum("sec,sm->ecm", mask.type_as(x), x)
        arrived = AllToAll.apply(self.group, leaving).view(self.ep, -1, *leaving.shape[1:])
        back = AllToAll.apply(self.group, self.experts(arrived).reshape(leaving.shape))
        return (combine.unsqueeze(3) * back.unsqueeze(0)).sum(dim=(1, 2))


class Block(nn.Module):
    def __init__(self, group, k, drop):
        super().__init__()
        self.norm, self.moe = nn.LayerNorm(WIDTH), MoELayer(group, k, drop)

    def forward(self, x):
        return x + self.moe(self.norm(x))


class Trainer:
    """One rank. ep: ranks of an EP group, which are neighbours. eplb: options of attach, or None. adam: of the optimizer.

    block: class of the layers. compiled: options of torch.compile, or None.
    """

    def __init__(self, rank, world, directory, name, ep=None, k=1, drop=False, accumulate=1, adam=None, eplb=None, make=None,
                 block=Block, compiled=None):
        if not dist.is_initialized():
            dist.init_process_group("gloo", f"file://{directory}/{name}", rank=rank, world_size=world)
        ep = ep or world
        ep_groups = [dist.new_group(list(range(first, first + ep))) for first in range(0, world, ep)]
        edp_groups = [dist.new_group(list(range(first, world, ep))) for first in range(ep)]
        self.rank, self.world, self.ep, self.accumulate = rank, world, ep, accumulate
        self.ep_group, self.edp_group = ep_groups[rank // ep], edp_groups[rank % ep]
        self.first = rank % ep * (EXPERTS // ep)
        torch.manual_seed(5)
        self.model = nn.Sequential(*(block(self.ep_group, k, drop) for _ in range(LAYERS)))
        self._initialise()
        make = make or (lambda parameters: torch.optim.AdamW(parameters, lr=0.01, **(adam or {})))
        self.optimizer = make(self.model.parameters())
        self.losses, self.switches, self.step, self.attached = [], [], 0, None
        if eplb is not None:
            self.attach(eplb)
        for each in self.model if compiled else ():
            each.compile(**compiled)

    def attach(self, options):
        self.is_hooked = options.get("boundary") == "optimizer"
        # EPLB
        import eplb

        self.attached = eplb.torch.attach(
            self.model, self.optimizer, experts=Experts, router="gate", ep_group=self.ep_group, first_step=self.step,
            check_batch=batch(self.step, self.rank)[0], **options)
        # end of EPLB

    def run(self, steps, after=None):
        """after(trainer): once after each optimizer step, ahead of its boundary."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            for part in range(self.accumulate):
                x, target = batch(self.step * self.accumulate + part, self.rank)
                y = self.model(x)
                loss = ((y - target) ** 2).mean() + 0.01 * sum(block.moe.auxiliary for block in self.model)
                (loss / self.accumulate).backward()
                self.losses.append(float(loss.detach()))
            self._reduce_gradients()
            self.optimizer.step()
            if after is not None:
                after(self)
            # EPLB
            if self.attached is not None and not self.is_hooked:
                self.attached.step_boundary(self.step)
            # end of EPLB
            if self.attached is not None and self.attached.last_boundary.switched:
                self.switches.append(self.step)
            self.step += 1
        return self

    def save(self, directory):
        """Saves as DeepSpeed does: a file for each expert by its global number, made from the state dict of the whole."""
        whole = self.model.state_dict()
        for layer in range(LAYERS):
            for local in range(EXPERTS // self.ep):
                prefix = f"{layer}.moe.experts.deepspeed_experts.{local}."
                state = {key[len(prefix):]: whole.pop(key) for key in list(whole) if key.startswith(prefix)}
                if self.rank < self.ep:
                    torch.save(state, os.path.join(directory, f"layer_{layer}_expert_{self.first + local}.pt"))
        torch.save({"model": whole, "optimizer": self.optimizer.state_dict(), "step": self.step},
                   os.path.join(directory, f"rank_{self.rank}.pt"))
        dist.barrier()

    def load(self, directory):
        found = torch.load(os.path.join(directory, f"rank_{self.rank}.pt"))
        whole = found["model"]
        for layer in range(LAYERS):
            for local in range(EXPERTS // self.ep):
                state = torch.load(os.path.join(directory, f"layer_{layer}_expert_{self.first + local}.pt"))
                whole.update({f"{layer}.moe.experts.deepspeed_experts.{local}.{key}": value for key, value in state.items()})
        self.model.load_state_dict(whole)
        self.optimizer.load_state_dict(found["optimizer"])
        self.step = found["step"]
        return self

    def result(self):
        """Losses, switches, and every parameter with its state by logical name; of this rank. Detaches."""
        moved = 0
        if self.attached is not None and self.attached.client is not None:
            slots = self.attached.client.placement.physical_to_logical_map
            moved = int((slots != torch.arange(EXPERTS).numpy()).sum())
            self.attached.detach()
        tensors = {}
        for name, parameter in self.model.named_parameters():
            tensors[name] = parameter.detach().numpy().tobytes()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{name}/{key}"] = value.numpy().tobytes() if torch.is_tensor(value) else value
        return {"losses": self.losses, "tensors": tensors, "switches": self.switches, "moved": moved}

    def _initialise(self):
        """Every expert by its global number, on whichever rank."""
        for layer, block in enumerate(self.model):
            for local, expert in enumerate(block.moe.experts.deepspeed_experts):
                generator = torch.Generator().manual_seed(100 * layer + self.first + local)
                for parameter in expert.parameters():
                    parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3

    def _reduce_gradients(self):
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                continue
            dist.all_reduce(parameter.grad, group=self.edp_group if ".experts." in name else None)
            parameter.grad /= self.world


def batch(step, rank):
    """(input, target) [tokens, width]: which kinds of tokens come changes by phases, so that other experts are hot."""
    kinds = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
    centres = torch.randn(3, WIDTH, generator=kinds) * 2
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = centres[torch.randint(3, (TOKENS,), generator=generator)] + torch.randn(TOKENS, WIDTH, generator=generator) * 0.3
    return x, x.roll(1, dims=1)
