"""A small MoE training in DeepSpeed, with EPLB or without it, on one rank of a process group of gloo."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import compare
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

VERSION = deepspeed.__version__
WIDTH, HIDDEN, TOKENS = 24, 40, 48
PHASE_STEPS = 12  # after which other tokens arrive, so that other experts are hot

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # otherwise it is compiled at the start


class Training:
    """row: of table.py. Keys: ep, experts, layers, zero (stage), bf16, moe (arguments of MoE), accumulate, config (of DeepSpeed),
    foreach, group (parameters in one group of the optimizer)."""

    def __init__(self, row):
        self.row = {"experts": 8, "layers": 2, "zero": 0, "bf16": False, "moe": {}, "accumulate": 1, "config": {},
                    "foreach": None, "group": 178956971, **row}
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        torch.manual_seed(77 + dist.get_rank())
        model = self.model()
        groups = split_params_into_different_moe_groups_for_optimizer(
            [{"params": [each for each in model.parameters() if each.requires_grad], "name": "all"}], self.row["group"])
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=5e-3, foreach=self.row["foreach"])
        self.engine, self.optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=self.config())
        self.attached, self.losses, self.switches, self.num_seen = None, [], [], 0

    def config(self):
        return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": self.row["accumulate"],
                "gradient_clipping": 0.0, "zero_optimization": {"stage": self.row["zero"]}, "bf16": {"enabled": self.row["bf16"]},
                "zero_allow_untested_optimizer": True, "steps_per_print": 10**9, **self.row["config"]}

    def model(self):
        model = _Whole(self.row)
        held = self.row["experts"] // self.row["ep"]
        place = dist.get_rank() % self.row["ep"]
        for name, parameter in model.named_parameters():
            of_one = compare.OF_ONE[0].match(name)
            # By logical expert, so that a model has the same ones on any number of ranks.
            key = f"{of_one[1]}{place * held + int(of_one[2])}{of_one[3]}" if of_one else name
            generator = torch.Generator().manual_seed(int.from_bytes(key.encode(), "little") % (2 ** 61 - 1))
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + ("norm.weight" in name))
        return model

    def attach(self, endpoint, job):
        # EPLB
        import eplb.deepspeed
        self.attached = eplb.deepspeed.attach(self.engine, endpoint=endpoint, job=job, **self.options)
        # end of EPLB

    options = {"vote_every": 2, "report_every": 4, "require_daemon": True}

    def run(self, steps):
        for step in range(steps):
            for _ in range(self.row["accumulate"]):
                loss = self.loss(step)
                self.engine.backward(loss)
                self.losses.append(float(loss))
                self.engine.step()
            if self.attached is not None and self.attached.last_boundary.switched:
                self.switches.append(step)
        return self

    def loss(self, step):
        hidden = self.batch(step)
        output, auxiliary = self.engine(hidden)
        return ((output - hidden.roll(1, dims=-1)) ** 2).mean() + 0.01 * auxiliary

    def batch(self, step):
        """Returns hidden states of three kinds, which follow from the phase that a step is in."""
        self.num_seen += 1
        centre = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(17 + step // PHASE_STEPS)) * 2
        generator = torch.Generator().manual_seed(1000 * self.num_seen + dist.get_rank())
        kind = torch.randint(3, (TOKENS,), generator=generator)
        hidden = centre[kind] + torch.randn(TOKENS, WIDTH, generator=generator) * 0.3
        return hidden.unsqueeze(0).to(torch.bfloat16 if self.row["bf16"] else torch.float32)

    def detach(self):
        # EPLB
        self.attached.detach()
        # end of EPLB

    def result(self):
        """After detach: every parameter and buffer, and what torch's optimizer holds, which are flat partitions with ZeRO."""
        inner, rank, ep = getattr(self.optimizer, "optimizer", self.optimizer), dist.get_rank(), self.row["ep"]
        parts = {f"{rank % ep if '.experts.' in name else ''}.{name}": tensor
                 for name, tensor in (*self.engine.module.named_parameters(), *self.engine.module.named_buffers())}
        for group, found in enumerate(inner.param_groups):
            for number, master in enumerate(found["params"]):
                parts[f"rank {rank} group {group}.{number}"] = master
                parts.update((f"rank {rank} group {group}.{number}.{key}", value)
                             for key, value in inner.state[master].items() if torch.is_tensor(value))
        return {"losses": [value.hex() for value in self.losses], "switches": self.switches,
                "digests": {key: compare.digest(tensor) for key, tensor in parts.items()}}


class _Whole(torch.nn.Module):
    def __init__(self, row):
        super().__init__()
        expert = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH))
        options = {"k": 1, "use_rts": False, "drop_tokens": False, "min_capacity": 1, **row["moe"]}
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(row["layers"]))
        self.blocks = torch.nn.ModuleList(MoE(WIDTH, expert, num_experts=row["experts"], ep_size=row["ep"], **options)
                                          for _ in range(row["layers"]))

    def forward(self, hidden):
        auxiliary = 0
        for norm, block in zip(self.norms, self.blocks):
            output, of_block, _ = block(norm(hidden))
            hidden, auxiliary = hidden + output, auxiliary + of_block
        return hidden, auxiliary
