"""One rank of a small training of DeepSpeed on CPUs, with EPLB or without it: its real engine, deepspeed.moe, ZeRO and checkpoints."""

import logging
import os
import pathlib
import sys
import types
import unittest
from unittest import mock

os.environ["DS_ACCELERATOR"] = "cpu"

import compare
import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # imports torch's compiler, here rather than in each rank
import eplb.deepspeed
import forked
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.moe.layer import MoE
from deepspeed.moe.sharded_moe import MOELayer, TopKGate
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # otherwise it is compiled at the start
logging.disable(logging.WARNING)

WIDTH, HIDDEN, TOKENS = 24, 40, 48
PHASE_STEPS = 8  # after which other tokens arrive, so that other experts are hot
SAVED, LOADED = 25, 33  # steps after which a checkpoint is written, and read again


class Training:
    """row: of ROWS."""

    def __init__(self, row):
        self.row, self.directory = row, pathlib.Path(row["directory"])
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        torch.manual_seed(77 + dist.get_rank())
        self.engine, self.optimizer, _, _ = self.initialize()
        self.endpoint, self.losses, self.switches, self.is_refused, self.num_batches = None, [], [], False, 0

    def config(self):
        row = self.row
        return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row["accumulate"], "gradient_clipping": 0.0,
                "zero_optimization": {"stage": row["zero"]}, "steps_per_print": 10**9,
                "bf16": {"enabled": row["dtype"] == "bfloat16"},
                # A scale by which the first steps overflow, and are skipped.
                "fp16": {"enabled": row["dtype"] == "float16", "initial_scale_power": 20}, **row["config"]}

    def initialize(self):
        model = self.model()
        groups = split_params_into_different_moe_groups_for_optimizer(
            [{"params": [each for each in model.parameters() if each.requires_grad], "name": "all"}], self.row["group"])
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=5e-3, foreach=self.row["foreach"])
        return deepspeed.initialize(model=model, optimizer=optimizer, config=self.config())

    def model(self):
        """Parameters follow from the logical expert, so that each has its own on every rank."""
        model = Model(self.row)
        held = self.row["experts"] // self.row["ep"]
        for name, parameter in model.named_parameters():
            of_one = compare.OF_ONE[0].match(name)
            key = f"{of_one[1]}{dist.get_rank() % self.row['ep'] * held + int(of_one[2])}{of_one[3]}" if of_one else name
            generator = torch.Generator().manual_seed(int.from_bytes(key.encode(), "little") % (2 ** 61 - 1))
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + ("norm" in name and "weight" in name))
        return model

    def attach(self, endpoint, _job):
        self.endpoint = endpoint

    def run(self, steps):
        """By the lines of the page."""
        self.names = {"engine": self.engine, "batches": self._batches(steps), "loss_of": self._loss_of}
        forked.run_page("DeepSpeed", self.endpoint, self.names)

    def _batches(self, steps):
        """Yields what a micro-batch is given, and goes on when it has ended."""
        for step in range(1, steps + 1):
            for _ in range(self.row["accumulate"]):
                batch = self.batch(step)
                yield batch
            attached = self.names.get("attached")
            if attached is not None:
                if attached.last_boundary.switched:
                    self.switches.append(step)
                forked.give_time(len(self.switches))
                self.is_refused = self.is_refused or forked.refuses(
                    attached, [self.engine.module.state_dict, getattr(self.optimizer, "optimizer", self.optimizer).state_dict])
            if step % 10 == 0:
                with torch.no_grad():
                    self._loss_of(self.engine.module, batch)
            if attached is not None and step == steps:
                self.verify(attached)
            # Attached, the engine does both in static order.
            if self.row["saves"] and step == SAVED:
                self.engine.save_checkpoint(self.directory, tag="saved")
            if self.row["saves"] and step == LOADED:
                self.engine.load_checkpoint(self.directory, tag="saved")

    def verify(self, attached):
        attached.check()
        attached.check_experts()

    def _loss_of(self, model, batch):
        loss = self.loss(model, batch)
        self.losses.append(loss.item())
        return loss

    def loss(self, model, hidden):
        output, auxiliary = model(hidden)
        return ((output - hidden.roll(1, dims=-1)) ** 2).mean() + 0.01 * auxiliary

    def batch(self, step):
        """Returns hidden states of two kinds, which follow from the phase that a step is in."""
        centre = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(17 + step // PHASE_STEPS)) * 2
        generator = self.random()
        kind = torch.randint(2, (TOKENS,), generator=generator)
        hidden = centre[kind] + torch.randn(TOKENS, WIDTH, generator=generator) * 0.3
        return hidden.unsqueeze(0).to(getattr(torch, self.row["dtype"]))

    def random(self):
        """Returns random numbers of a rank's next batch."""
        self.num_batches += 1
        return torch.Generator().manual_seed(1000 * self.num_batches + dist.get_rank())

    def result(self):
        """Digests of parameters and buffers, and of what torch's optimizer holds, which are flat partitions with ZeRO."""
        if self.row["cuts"]:
            self.expect_cut()
        assert self.row["dtype"] != "float16" or self.engine.skipped_steps, "no step was skipped"
        inner, prefix = getattr(self.optimizer, "optimizer", self.optimizer), f"rank {dist.get_rank()} "
        tensors = {**dict(self.engine.module.named_parameters()), **dict(self.engine.module.named_buffers())}
        for number, master in enumerate(master for group in inner.param_groups for master in group["params"]):
            tensors[f"master {number}"] = master
            tensors.update((f"master {number} {key}", value) for key, value in inner.state[master].items() if torch.is_tensor(value))
        digests = {prefix + name: compare.digest(tensor) for name, tensor in tensors.items()}
        for path in sorted(self.directory.glob("saved/*.pt")):
            digests.update((key, compare.digest(tensor)) for key, tensor in tensors_in(path.name, torch.load(path, weights_only=False)))
        return {"losses": [value.hex() for value in self.losses], "switches": self.switches, "digests": digests}

    def expect_cut(self):
        """A partition of ZeRO ends inside a parameter of an expert."""
        held = [each._hp_mapping for name, each in self.engine.module.named_parameters() if ".experts." in name]
        sizes = [each.numel() for name, each in self.engine.module.named_parameters() if ".experts." in name]
        assert any(part and 0 < part.lp_fragment_address.numel < size for part, size in zip(held, sizes)), "no parameter is cut"

    def close(self):
        assert self.endpoint is None or self.is_refused, "no state dict of moved experts was tried"
        assert not {"save_checkpoint", "load_checkpoint"} & set(vars(self.engine)), "detach left methods of the engine replaced"
        self.engine.destroy()


def tensors_in(name, value):
    """Yields the tensors of what a file has, with their names."""
    if torch.is_tensor(value):
        yield name, value
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ():
        yield from tensors_in(f"{name} {key}", each)


class Model(torch.nn.Module):
    def __init__(self, row):
        super().__init__()
        expert = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH))
        options = {"use_rts": False, "drop_tokens": False, "min_capacity": 1, **row["moe"]}
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(row["layers"]))
        self.blocks = torch.nn.ModuleList(MoE(WIDTH, expert, num_experts=row["experts"], ep_size=row["ep"], **options)
                                          for _ in range(row["layers"]))

    def forward(self, hidden):
        auxiliary = 0
        for norm, block in zip(self.norms, self.blocks):
            output, of_block, _ = block(norm(hidden))
            hidden, auxiliary = hidden + output, auxiliary + of_block
        return hidden, auxiliary


def row(key, name, world=2, **options):
    """moe: arguments of MoE. group: parameters in one group of the optimizer at most. cuts: asserts that a partition ends inside of
    a parameter. saves: whether it saves and loads a checkpoint."""
    return {"key": key, "name": name, "world": world, "ep": 2, "experts": 8, "layers": 2, "zero": 0, "dtype": "float32", "moe": {"k": 2},
            "accumulate": 1, "config": {}, "foreach": None, "group": 178956971, "cuts": False, "saves": False, "steps": 48, **options}


BF16 = {"dtype": "bfloat16"}
CUT = {"world": 4, "experts": 6, "layers": 3, "cuts": True, **BF16}
SUMS_IN_FP32 = {"data_types": {"grad_accum_dtype": "fp32"}}

ROWS = (
    row("push", "EP2 bf16 ZeRO-2", zero=2, steps=40, **BF16),
    row("top1", "EP2 fp32 top-1", moe={"k": 1}),
    row("top2", "EP2 fp32 top-2, foreach", foreach=True),
    row("dropped", "EP2 fp32 top-1, dropped tokens", moe={"k": 1, "drop_tokens": True, "capacity_factor": 3.0}),
    row("accumulated", "EP2 fp32, 3 batches accumulated", accumulate=3),
    row("edp", "EP2 x DP2 fp32, checkpoint", world=4, saves=True),
    row("ep4", "EP4 fp32", world=4, ep=4),
    row("zero0", "EP2 bf16 ZeRO-0", **BF16),
    row("zero1", "EP2 bf16 ZeRO-1", zero=1, **BF16),
    row("zero1_fp32_sums", "EP2 bf16 ZeRO-1, sums in fp32", zero=1, config=SUMS_IN_FP32, **BF16),
    row("fp16", "EP2 fp16 ZeRO-2, steps that are skipped", zero=2, dtype="float16",
        unsupported="" if get_accelerator().is_fp16_supported() else "DeepSpeed does not train in fp16 on this processor"),
    row("zero2_groups", "EP2 fp32 ZeRO-2, a group for few parameters, checkpoint", zero=2, group=3000, saves=True),
    row("zero1_edp", "EP2 x DP2 bf16 ZeRO-1, cut", zero=1, **CUT),
    row("zero1_edp_fp32_sums", "EP2 x DP2 bf16 ZeRO-1, cut, sums in fp32", zero=1, config=SUMS_IN_FP32, **CUT),
    row("zero2_edp", "EP2 x DP2 bf16 ZeRO-2, cut, checkpoint", zero=2, saves=True, **CUT))

RowsTest = forked.tests_of(Training, ROWS)


class RefusedTest(unittest.TestCase):
    def engine(self, stage=1, pipeline=False, decoupled=False, **optimizer):
        """Returns what attach looks at in an engine, with a real model."""
        of_optimizer = types.SimpleNamespace(bit16_groups=[], single_partition_of_fp32_groups=[], **optimizer)
        return types.SimpleNamespace(
            module=Model(ROWS[0]), optimizer=of_optimizer, pipeline_parallelism=pipeline, zero_optimization_stage=lambda: stage,
            checkpoint_engine=types.SimpleNamespace(is_decoupled=lambda: decoupled))

    def test_settings_are_refused_by_name(self):
        without, two_sizes = self.engine(), self.engine()
        without.optimizer = None
        next(each for each in two_sizes.module.modules() if isinstance(each, MOELayer)).ep_group_name = "ep_size_4"
        for engine, message in (
                (without, "the engine has no optimizer"),
                (self.engine(stage=3), "ZeRO stage 3 shards every expert"),
                (self.engine(round_robin_gradients=True), "round_robin_gradients: "),
                (self.engine(cpu_offload=True), "offload_optimizer: "),
                (self.engine(pipeline=True), "a PipelineEngine: "),
                (self.engine(decoupled=True), "a decoupled checkpoint engine "),
                (two_sizes, "layers of ep_size_2 and ep_size_4: "),
                (types.SimpleNamespace(module=torch.nn.Linear(1, 1)), "has no deepspeed.moe.layer.MoE"),
                (self.engine(), "SimpleNamespace keeps masters in a way that is not supported")):
            with self.subTest(message), self.assertRaisesRegex(eplb.InvalidArgument, message):
                eplb.deepspeed.attach(engine)

    def test_another_release_is_refused_by_the_part_that_is_missing(self):
        with mock.patch.object(TopKGate, "forward", lambda self, input, used_token=None, use_tutel=False: ()), \
                self.assertRaisesRegex(eplb.InvalidArgument, r"^deepspeed .* has no TopKGate.forward\(.., sparse_routes\) .* 0.19.8"):
            eplb.deepspeed.attach(self.engine())

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    forked.main()
