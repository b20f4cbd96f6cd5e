"""One rank of a small training of torchtitan on the CPU, with EPLB or without it: its real MoE layers, sharding, FSDP, optimizers
and checkpointer.

Stand-ins: the device is the CPU, blocks are their MoE layer alone, the decoder has neither embedding nor head, and FSDP sums
before it divides, because gloo has no multiplying sum.
"""

import contextlib
import functools
import logging
import sys
import types

import forked
import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"  # torchtitan asks once, and takes "cuda" where there is none


class _NoKernels(types.ModuleType):
    """Triton kernels of a dispatcher that needs symmetric memory of GPUs."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = _NoKernels("kernels")
logging.disable(logging.WARNING)

import compare  # noqa: E402
import spmd_types as spmd  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint import FileSystemReader  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.optimizer import OptimizersContainer, default_adamw, register_moe_load_balancing_hook  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed import utils as titan_utils  # noqa: E402
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder  # noqa: E402
from torchtitan.models.common.config_utils import make_moe_config, make_routed_experts_config, make_router_config  # noqa: E402
from torchtitan.models.common.moe_sharding import set_moe_sharding_config  # noqa: E402
from torchtitan.protocols.module import Module  # noqa: E402

WIDTH, HIDDEN, EXPERTS, LAYERS, TOKENS = 32, 48, 8, 2, 40
PHASE_STEPS = 10  # after which other tokens come, so that other experts are hot
SAVED, LOADED = 24, 30  # steps at which a checkpoint is written, and read again
BACKEND = "partial_dtensor"  # the default does not run on torch 2.13


def moe_config(score, experts):
    init = functools.partial(nn.init.normal_, std=0.3)
    config = make_moe_config(
        num_experts=experts, load_balance_coeff=1e-2,
        router=make_router_config(dim=WIDTH, num_experts=experts, top_k=2, score_func=score, route_norm=True,
                                  gate_param_init={"weight": functools.partial(nn.init.normal_, std=0.8)}),
        routed_experts=make_routed_experts_config(
            dim=WIDTH, hidden_dim=HIDDEN, num_experts=experts, top_k=2, comm_backend="standard",
            param_init={"w1_EFD": init, "w2_EDF": init, "w3_EFD": init}))
    set_moe_sharding_config(config, enable_ep=True, enable_sp=False,
                            expert_param_layout={"w1_EFD": spmd.S(1), "w2_EDF": spmd.S(2), "w3_EFD": spmd.S(1)})
    return config


class Block(Module):
    def __init__(self, config):
        super().__init__()
        self.moe, self.moe_enabled = config.build(), True

    def forward(self, x):
        return x + self.moe(x)


class Decoder(Module):
    enable_weight_tying, tok_embeddings, norm, lm_head = False, None, None, None

    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Block(config) for number in range(LAYERS)})

    def forward(self, x):
        for block in self.layers.values():
            x = block(x)
        return x


class Training:
    def __init__(self, row):
        titan_utils.set_spmd_backend(BACKEND)
        dims = ParallelDims(dp_replicate=row["replicas"], dp_shard=row["world"] // row["replicas"], cp=1, tp=1, pp=1, ep=row["ep"],
                            world_size=row["world"], spmd_backend=BACKEND)
        dims.build_mesh()
        self.model = Decoder(moe_config(row["score"], row["experts"]))
        self.model.parallelize(dims)
        replicate = ["dp_replicate"] if row["replicas"] > 1 else []
        apply_fsdp_to_decoder(self.model, dims.get_mesh([*replicate, "fsdp"]), torch.float32, torch.float32, pp_enabled=False,
                              ep_degree=row["ep"], edp_mesh=dims.get_optional_mesh([*replicate, "efsdp"]))
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        torch.manual_seed(7 + dist.get_rank())  # a CPU mesh would give all ranks the same random numbers
        with torch.no_grad():
            self.model.init_states()
        optimizers = OptimizersContainer.Config(param_groups=default_adamw(lr=0.01).param_groups, implementation="for-loop").build(
            model_parts=[self.model])
        register_moe_load_balancing_hook(optimizers, [self.model], dims)
        checkpointer = CheckpointManager.Config(enable=True, folder=row["directory"], interval=SAVED, keep_latest_k=0,
                                                async_mode=row["saves"]).build(
            dataloader=None, model_parts=[self.model], optimizers=optimizers, lr_schedulers=None, states={}, sd_adapter=None)
        # Stands for torchtitan's Trainer.
        self.trainer = types.SimpleNamespace(model_parts=[self.model], optimizers=optimizers, parallel_dims=dims,
                                             checkpointer=checkpointer, train=self._train)
        self.names, self.endpoint, self.losses, self.switches = {"trainer": self.trainer}, None, [], []
        self.is_refused, self.first = False, SAVED if row["is_resumed"] else 0
        if not self.first:
            self._save_start()
        if row["compiles"]:
            torch._dynamo.config.capture_scalar_outputs = True  # torchtitan sets it
            for block in self.model.layers.values():
                block.compile(backend=row["compiles"], fullgraph=True)

    def _save_start(self):
        """Leaves a checkpoint that the training begins with, and other parameters than those in it."""
        self.trainer.checkpointer.save(0)
        self.trainer.checkpointer.maybe_wait_for_saving()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(2)
        for optimizer in self.trainer.optimizers:
            optimizer.state.clear()

    def attach(self, endpoint, _job):
        self.endpoint = endpoint

    def run(self, steps):
        self.last = self.first + steps
        forked.run_page("torchtitan", self.endpoint, self.names)

    def _train(self):
        attached = self.names.get("attached")
        self.trainer.checkpointer.load(self.first)
        self.loaded = compare.digests_on_rank(self.model, self.trainer.optimizers)
        for step in range(self.first + 1, self.last + 1):
            x = batch(step)
            self.trainer.optimizers.zero_grad()
            loss = ((self.model(x) - x.roll(1, dims=-1)) ** 2).mean()
            loss.backward()
            self.trainer.optimizers.step()
            self.losses.append(float(loss))
            if attached is not None:
                if attached.last_boundary.switched:
                    self.switches.append(step)
                forked.give_time(len(self.switches))
                # ModelWrapper would write its copy into the live memory of other experts.
                self.is_refused = self.is_refused or forked.refuses(attached, [self.trainer.checkpointer.states["model"].state_dict])
            assert step != SAVED or attached is None or forked.is_moved(attached), "experts are not moved yet"
            self.trainer.checkpointer.save(step, last_step=step == self.last)
            if step == LOADED and not self.first:
                with attached.static_order() if attached is not None else contextlib.nullcontext():
                    self.trainer.checkpointer.load(SAVED)
            if attached is not None and step == self.last:
                attached.check()

    def result(self):
        digests = {**compare.digests_on_rank(self.model, self.trainer.optimizers),
                   **{f"loaded {key}": value for key, value in self.loaded.items()}}
        self.trainer.checkpointer.maybe_wait_for_saving()
        for step in (SAVED, self.last):
            digests.update((f"{step} {key}", value) for key, value in compare.digests_of_checkpoint(
                FileSystemReader(f"{self.trainer.checkpointer.folder}/step-{step}")).items())
        return {"losses": [value.hex() for value in self.losses], "switches": self.switches, "digests": digests}

    def close(self):
        assert self.is_refused == (self.endpoint is not None)
        dispatchers = [block.moe.routed_experts.token_dispatcher for block in self.model.layers.values()]
        assert not any({"dispatch", "_save"} & each.__dict__.keys() for each in [*dispatchers, self.trainer.checkpointer])
        self.trainer.checkpointer.close()


def batch(step):
    kinds = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
    centre = torch.randn(3, WIDTH, generator=kinds) * 2
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    kind = torch.randint(3, (2, TOKENS), generator=generator)
    return centre[kind] + torch.randn(2, TOKENS, WIDTH, generator=generator) * 0.3


def _row(key, name, world=2, score="sigmoid", saves="disabled", compiles=None, replicas=1, **more):
    return {"key": key, "name": name, "world": world, "ep": 2, "score": score, "saves": saves, "compiles": compiles,
            "replicas": replicas, "experts": EXPERTS, "steps": 44, **more}


# With two ranks for each expert at most, because a sum over more depends on the slot.
RESUMES = ({"world": 8, "ep": 4, "steps": 24}, {"world": 2, "steps": 24})

ROWS = (
    _row("push", "EP2, expert bias, sigmoid", steps=40),
    _row("softmax", "EP2, expert bias, softmax, asynchronous checkpoint", score="softmax", saves="async"),
    _row("compiled", "EP2, expert bias, sigmoid, blocks compiled by aot_eager", compiles="aot_eager"),
    _row("efsdp_sigmoid", "EP2 x EFSDP2, expert bias, sigmoid, and 8 and 2 ranks go on", world=4, experts=16, resumes=RESUMES),
    _row("efsdp_softmax", "EP2 x EFSDP2, expert bias, softmax", world=4, score="softmax"),
    _row("replicas", "EP2, two replicas, expert bias, sigmoid", world=4, replicas=2))

RowsTest = forked.tests_of(Training, ROWS)

if __name__ == "__main__":
    forked.main()
