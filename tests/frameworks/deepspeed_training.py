"""One rank of a small training of DeepSpeed on CPUs, with EPLB or without it: its real engine, deepspeed.moe, ZeRO and checkpoints."""

import logging
import os
import pathlib
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import compare
import deepspeed
import forked
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # otherwise it is compiled at the start
logging.disable(logging.WARNING)

WIDTH, HIDDEN, TOKENS = 24, 40, 48
PHASE_STEPS = 12  # after which other tokens arrive, so that other experts are hot
SAVED, LOADED = 25, 33  # steps after which a checkpoint is written, and read again


class Training:
    """row: of ROWS."""

    def __init__(self, row):
        self.row, self.directory = row, pathlib.Path(row["directory"])
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        torch.manual_seed(77 + dist.get_rank())
        self.engine, self.optimizer, _, _ = self.initialize()
        self.attached, self.losses, self.switches, self.num_batches = None, [], [], 0

    def config(self):
        row = self.row
        return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row["accumulate"], "gradient_clipping": 0.0,
                "zero_optimization": {"stage": row["zero"]}, "bf16": {"enabled": row["bf16"]}, "steps_per_print": 10**9,
                **row["config"]}

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

    def attach(self, endpoint, job):
        import eplb.deepspeed

        self.attached = eplb.deepspeed.attach(self.engine, endpoint=endpoint, job=job, vote_every=2, report_every=4, require_daemon=True)

    def run(self, steps):
        for step in range(1, steps + 1):
            for _ in range(self.row["accumulate"]):
                loss = self.loss(step)
                self.engine.backward(loss)
                self.losses.append(loss.item())
                self.engine.step()
            if self.attached is not None:
                if self.attached.last_boundary.switched:
                    self.switches.append(step)
                forked.give_time(len(self.switches))
            if self.row["saves"]:
                self.save_and_load(step)
        if self.attached is not None:
            self.attached.detach()

    def save_and_load(self, step):
        """Attached, the engine does both in static order."""
        if step == SAVED:
            self.engine.save_checkpoint(self.directory, tag="saved")
        elif step == LOADED:
            self.engine.load_checkpoint(self.directory, tag="saved")
        elif self.attached is not None and step == self.row["steps"] - 1:
            self.expect_refused()

    def expect_refused(self):
        import eplb

        for each in (self.engine.module.state_dict, self.engine.optimizer.state_dict):
            try:
                each()
            except eplb.FailedPrecondition as error:
                assert "with attached.static_order():" in str(error), error
            else:
                raise AssertionError("a state dict of moved experts was not refused")

    def loss(self, step):
        hidden = self.batch(step)
        output, auxiliary = self.engine(hidden)
        return ((output - hidden.roll(1, dims=-1)) ** 2).mean() + 0.01 * auxiliary

    def batch(self, step):
        """Returns hidden states of three kinds, which follow from the phase that a step is in."""
        centre = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(17 + step // PHASE_STEPS)) * 2
        generator = self.random()
        kind = torch.randint(3, (TOKENS,), generator=generator)
        hidden = centre[kind] + torch.randn(TOKENS, WIDTH, generator=generator) * 0.3
        return hidden.unsqueeze(0).to(torch.bfloat16 if self.row["bf16"] else torch.float32)

    def random(self):
        """Returns random numbers of a rank's next batch."""
        self.num_batches += 1
        return torch.Generator().manual_seed(1000 * self.num_batches + dist.get_rank())

    def result(self):
        """Digests of parameters and buffers, and of what torch's optimizer holds, which are flat partitions with ZeRO."""
        if self.row["cuts"]:
            self.expect_cut()
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
    return {"key": key, "name": name, "world": world, "ep": 2, "experts": 8, "layers": 2, "zero": 0, "bf16": False, "moe": {"k": 2},
            "accumulate": 1, "config": {}, "foreach": None, "group": 178956971, "cuts": False, "saves": False, "steps": 48, **options}


BF16 = {"bf16": True}
CUT = {"world": 4, "experts": 6, "layers": 3, "cuts": True, **BF16}
SUMS_IN_FP32 = {"data_types": {"grad_accum_dtype": "fp32"}}

ROWS = (
    row("push", "EP2 bf16 ZeRO-2", zero=2, **BF16),
    row("top1", "EP2 fp32 top-1", moe={"k": 1}),
    row("top2", "EP2 fp32 top-2, foreach", foreach=True),
    row("dropped", "EP2 fp32 top-1, dropped tokens", moe={"k": 1, "drop_tokens": True, "capacity_factor": 1.5}),
    row("accumulated", "EP2 fp32, 3 batches accumulated", accumulate=3),
    row("edp", "EP2 x DP2 fp32, checkpoint", world=4, saves=True),
    row("ep4", "EP4 fp32", world=4, ep=4),
    row("zero0", "EP2 bf16 ZeRO-0", **BF16),
    row("zero1", "EP2 bf16 ZeRO-1", zero=1, **BF16),
    row("zero1_fp32_sums", "EP2 bf16 ZeRO-1, sums in fp32", zero=1, config=SUMS_IN_FP32, **BF16),
    row("zero2_groups", "EP2 bf16 ZeRO-2, a group for few parameters, checkpoint", zero=2, group=3000, saves=True, **BF16),
    row("zero1_edp", "EP2 x DP2 bf16 ZeRO-1, cut", zero=1, **CUT),
    row("zero1_edp_fp32_sums", "EP2 x DP2 bf16 ZeRO-1, cut, sums in fp32", zero=1, config=SUMS_IN_FP32, **CUT),
    row("zero2_edp", "EP2 x DP2 bf16 ZeRO-2, cut, checkpoint", zero=2, saves=True, **CUT))

RowsTest = forked.tests_of(Training, ROWS)

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    forked.main()
