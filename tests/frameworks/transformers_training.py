"""One rank of a small training of transformers on the CPU, with EPLB or without it: its real models, loading, expert, tensor and
data parallelism, saving, and Trainer.

Stand-in: sorts are stable in both trainings. On the CPU, tokens of one expert otherwise change places when keys of others change.
"""

import functools
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import accelerate.utils.other  # noqa: E402
import compare  # noqa: E402
import forked  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageReader  # noqa: E402
from torch.utils.data import SequentialSampler  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    MixtralConfig,
    Qwen3MoeConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig  # noqa: E402
from transformers.distributed.checkpoint import load_optimizer_distributed, save_optimizer_distributed  # noqa: E402

VOCABULARY, TOKENS, EXPERTS = 64, 24, 8
PHASE_STEPS = 10  # after which other tokens come, so that other experts are hot
SAVED = 24  # step at which a checkpoint is written

accelerate.utils.other.is_deepspeed_available = lambda: False  # otherwise each save imports it
transformers.utils.logging.disable_progress_bar()
torch.argsort, torch.sort = (functools.partial(each, stable=True) for each in (torch.argsort, torch.sort))

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
         "head_dim": 8, "max_position_embeddings": 64, "num_experts_per_tok": 2, "output_router_logits": True,
         "router_aux_loss_coef": 0.01, "tie_word_embeddings": False}
CONFIGS = {"mixtral": lambda experts: MixtralConfig(**SIZES, intermediate_size=24, num_local_experts=experts),
           "qwen3": lambda experts: Qwen3MoeConfig(**SIZES, intermediate_size=32, moe_intermediate_size=24, num_experts=experts,
                                           norm_topk_prob=True)}


class Training:
    def __init__(self, row):
        self.row, self.saved, self.first = row, f"{row['directory']}/saved", SAVED if row["is_resumed"] else 0
        self.last = self.first + row["steps"]
        source = self.saved if self.first else f"{row['directory']}/source"
        if dist.get_rank() == 0 and not self.first:
            torch.manual_seed(5)
            model = AutoModelForCausalLM.from_config(CONFIGS[row["model"]](row["experts"]))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "norm" not in name:
                        parameter.normal_(std=0.2)
            model.save_pretrained(source)
        dist.barrier()
        distributed = DistributedConfig(tp_size=row["tp"], fsdp_size=row["world"] // row["tp"] // row["replicas"],
                                        dp_replicate_size=row["replicas"], ep_size=row["ep"])
        self.model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, distributed_config=distributed)
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        if self.first:
            load_optimizer_distributed(self.model, self.optimizer, f"{self.saved}/optimizer")
        self.loaded = compare.digests_on_rank(self.model, [self.optimizer])
        self.model.register_forward_hook(lambda _module, _arguments, output: self.losses.append(float(output.loss)))
        self.names = {"model": self.model, "optimizer": self.optimizer}
        self.endpoint, self.losses, self.switches, self.is_refused = None, [], [], False

    def attach(self, endpoint, _job):
        self.endpoint = endpoint

    def run(self, _steps):
        self.names["batches"] = self._batches()
        forked.run_page("transformers", self.endpoint, self.names)

    def _batches(self):
        """Yields what a step is given, and goes on when it has ended."""
        for step in range(self.first + 1, self.last + 1):
            yield batch(step, dist.get_rank() // self.row["tp"])
            self.end_step(step)

    def end_step(self, step):
        attached = self.names.get("attached")
        if attached is not None:
            if attached.last_boundary.switched:
                self.switches.append(step)
            forked.give_time(len(self.switches))
            self.is_refused = self.is_refused or forked.refuses(attached, [lambda: whole_experts(self.model)])
            if step == self.last:
                attached.check()
        if step % 10 == 0:
            with torch.no_grad():
                self.model(**batch(step, dist.get_rank() // self.row["tp"]))
        if step == SAVED:
            assert attached is None or forked.is_moved(attached), "experts are not moved yet"
            self.model.save_pretrained(self.saved, distributed_checkpoint=True)
            save_optimizer_distributed(self.model, self.optimizer, f"{self.saved}/optimizer")

    def result(self):
        digests = {**compare.digests_on_rank(self.model, [self.optimizer]),
                   **{f"loaded {key}": value for key, value in self.loaded.items()}}
        for reader in (HuggingFaceStorageReader(self.saved), FileSystemReader(f"{self.saved}/optimizer")):
            digests.update(compare.digests_of_checkpoint(reader))
        return {"losses": [value.hex() for value in self.losses], "switches": self.switches, "digests": digests}

    def close(self):
        assert self.is_refused == (self.endpoint is not None)


class OrderedTrainer(Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class WithTrainer(Training):
    """The Trainer of transformers, which saves while experts are moved."""

    def run(self, steps):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # Accelerate looks for them, and finds the group that is there
        ids = [each for step in range(1, steps + 1) for rank in range(2) for each in batch(step, rank)["input_ids"]]
        ended = type("Ended", (TrainerCallback,), {"on_step_end": lambda _self, _arguments, state, _control, **_: self.end_step(
            state.global_step)})()
        self.names["trainer"] = OrderedTrainer(
            model=self.model, train_dataset=[{"input_ids": each, "labels": each} for each in ids], callbacks=[ended],
            args=TrainingArguments(
                output_dir=f"{self.row['directory']}/trainer", max_steps=steps, per_device_train_batch_size=2, learning_rate=0.01,
                max_grad_norm=0.0, save_steps=SAVED, save_only_model=True, use_cpu=True, report_to=[], disable_tqdm=True))
        self.optimizer = self.names["trainer"].create_optimizer()
        forked.run_page("transformers", self.endpoint, self.names, number=1)

    def result(self):
        saved = compare.digests_of_checkpoint(HuggingFaceStorageReader(f"{self.row['directory']}/trainer/checkpoint-{SAVED}"))
        result = super().result()
        result["digests"].update({f"trainer {key}": value for key, value in saved.items()})
        return result


def whole_experts(model):
    return [each.full_tensor() for name, each in model.state_dict().items() if ".experts." in name]


def batch(step, number):
    """number: of the ranks that share a batch."""
    hot = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(17 + step // PHASE_STEPS))[:3]
    ids = hot[torch.randint(len(hot), (2, TOKENS), generator=torch.Generator().manual_seed(1000 * step + number))]
    return {"input_ids": ids, "labels": ids}


def _row(key, name, model, world, tp, replicas=1, **more):
    return {"key": key, "name": f"{model}, {name}", "model": model, "world": world, "tp": tp, "ep": 2, "replicas": replicas,
            "experts": EXPERTS, "steps": 44, **more}


# With two ranks for each expert at most, because a sum over more depends on the slot.
RESUMES = ({"world": 8, "ep": 4, "steps": 24}, {"world": 2, "steps": 24})

ROWS = (
    _row("push", "FSDP2/EP2", "qwen3", 2, 1, steps=41),
    _row("mixtral_tp2", "TP2/EP2", "mixtral", 2, 2),
    _row("mixtral_fsdp4", "FSDP4/EP2", "mixtral", 4, 1),
    _row("qwen3_tp2", "TP2/EP2", "qwen3", 2, 2),
    _row("qwen3_fsdp4", "FSDP4/EP2, and 8 and 2 ranks go on", "qwen3", 4, 1, experts=16, resumes=RESUMES),
    _row("replicas", "two replicas of FSDP2/EP2", "qwen3", 4, 1, replicas=2),
    _row("trainer", "FSDP2/EP2 by the Trainer", "qwen3", 2, 1, is_trainer=True))

RowsTest = forked.tests_of(lambda row: (WithTrainer if row.get("is_trainer") else Training)(row), ROWS)

if __name__ == "__main__":
    forked.main()
