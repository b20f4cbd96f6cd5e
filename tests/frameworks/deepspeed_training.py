"""One rank of a small MoE training in real DeepSpeed, with EPLB or without it; what came of it goes to a file.

    deepspeed_training.py CHECKOUT RESULT JSON       RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun sets them

JSON: the row of the table (table.py) with "steps" and, to train with EPLB, "endpoint" and "job".
"""

import os
import pathlib
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ["DS_ACCELERATOR"] = "cpu"
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "client/python")]

import boundary  # noqa: E402
import compare  # noqa: E402
import torch  # noqa: E402
import training_rank  # noqa: E402

WIDTH, HIDDEN, EXPERTS, LAYERS, TOKENS = 24, 40, 8, 2, 48
PHASE_STEPS = 20  # after which other tokens come, so that other experts are hot


class Training:
    def __init__(self, row):
        import deepspeed
        from deepspeed.moe.layer import MoE

        self.row = row
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # otherwise it is compiled at the start
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        torch.manual_seed(77)
        expert = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH))

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = torch.nn.LayerNorm(WIDTH)
                self.moe = MoE(WIDTH, expert, num_experts=EXPERTS, ep_size=row["ep"], **{
                    "k": 1, "use_rts": False, "drop_tokens": False, "min_capacity": 1, **row.get("moe", {})})

            def forward(self, hidden):
                output, auxiliary, _ = self.moe(self.norm(hidden))
                return hidden + output, auxiliary

        self.model = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=5e-3, foreach=row.get("foreach"))
        config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": row.get("accumulate", 1),
                  "gradient_clipping": 0.0, "zero_optimization": {"stage": 0}, "steps_per_print": 10**9}
        self._initialise()
        self.engine, self.optimizer, _, _ = deepspeed.initialize(model=_Whole(self.model), optimizer=self._groups(optimizer),
                                                                 config=config)
        self.attached, self.losses, self.switches = None, [], []

    def _initialise(self):
        """Parameters by logical expert, so that a model has the same ones on any number of ranks."""
        rank = torch.distributed.get_rank() % self.row["ep"]
        local = EXPERTS // self.row["ep"]
        for name, parameter in self.model.named_parameters():
            of_one = compare.OF_ONE[0].match(name)
            key = f"{of_one[1]}{rank * local + int(of_one[2])}{of_one[3]}" if of_one else name
            generator = torch.Generator().manual_seed(int.from_bytes(key.encode(), "little") % (2 ** 61 - 1))
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + ("norm.weight" in name))

    def _groups(self, optimizer):
        """Parameters of experts in groups of their own, as DeepSpeed asks for."""
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

        groups = split([{"params": optimizer.param_groups[0]["params"], "name": "all"}])
        options = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
        return torch.optim.AdamW([{**group, **{name: value for name, value in options.items() if name not in group}}
                                  for group in groups if group["params"]])

    def attach(self, endpoint, job):
        import eplb.torch
        from deepspeed.moe.experts import Experts
        from deepspeed.utils import groups

        name = f"ep_size_{self.row['ep']}"
        self.attached = eplb.torch.attach(
            self.model, self.optimizer, experts=Experts, router="gate", ep_group=groups._get_expert_parallel_group(name),
            edp_group=groups._get_expert_data_parallel_group(name), endpoint=endpoint, job=job, vote_every=2, report_every=4,
            require_daemon=True)

    def run(self, steps):
        for step in range(steps):
            for part in range(self.row.get("accumulate", 1)):
                hidden, target = self._batch(step * self.row.get("accumulate", 1) + part, step)
                output, auxiliary = self.engine(hidden)
                loss = ((output - target) ** 2).mean() + 0.01 * auxiliary
                self.engine.backward(loss)
                self.losses.append(float(loss))
                self.engine.step()
            if self.attached is not None:
                if self.attached.step_boundary(step).switched:
                    self.switches.append(step)
                time.sleep(0.01)  # for the daemon, on a busy machine
        return self

    def _batch(self, number, step):
        kinds = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
        centre = torch.randn(3, WIDTH, generator=kinds) * 2
        generator = torch.Generator().manual_seed(1000 * number + torch.distributed.get_rank())
        kind = torch.randint(3, (TOKENS,), generator=generator)
        hidden = centre[kind] + torch.randn(TOKENS, WIDTH, generator=generator) * 0.3
        return hidden.unsqueeze(0), hidden.unsqueeze(0).roll(1, dims=-1)

    def close(self):
        if self.attached is not None:
            self.attached.close()

    def result(self):
        rank, local = torch.distributed.get_rank() % self.row["ep"], EXPERTS // self.row["ep"]
        held = {}
        for name, module in self.model.named_modules():
            if hasattr(module, "gate") and hasattr(module, "experts"):
                row = list(range(EXPERTS))
                if self.attached is not None:
                    number = next(layer.index for layer in self.attached.layers if layer.experts is module.experts)
                    row = self.attached.client.placement.physical_to_logical_map[number].tolist()
                held[name] = row[rank * local:(rank + 1) * local]
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        parts = dict(self.model.named_parameters())
        for name, parameter in list(parts.items()):
            for key, value in inner.state[parameter].items():
                if torch.is_tensor(value):
                    parts[f"{name}.{key}"] = value
        digests = {key: compare.digest(piece) for name, tensor in parts.items()
                   for key, piece in compare.pieces(name, tensor, held)}
        return {"losses": [value.hex() for value in self.losses], "switches": self.switches, "digests": digests}


class _Whole(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def forward(self, hidden):
        auxiliary = 0
        for block in self.blocks:
            hidden, of_block = block(hidden)
            auxiliary = auxiliary + of_block
        return hidden, auxiliary


def stand_in(_row):
    boundary.collectives_of_gloo()
    boundary.deepspeed_modules()


if __name__ == "__main__":
    training_rank.run(stand_in, Training)
