"""One rank of a small MoE training in real Megatron-Core, with EPLB or without it; what came of it goes to a file.

    megatron_training.py CHECKOUT RESULT JSON        RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun sets them

JSON: the row of the table (table.py) with "steps" and, to train with EPLB, "endpoint" and "job".
"""

import dataclasses
import inspect
import os
import pathlib
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/examples/megatron"), str(ROOT / "client/python")]

import boundary  # noqa: E402
import compare  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training_rank  # noqa: E402

SEQUENCE, BATCH, MICRO_BATCHES, VOCABULARY, EXPERTS = 16, 2, 2, 64, 8
PHASE_STEPS = 20  # after which other tokens come, so that other experts are hot


def known(kind, **options):
    """Those of the options that a version's record has."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in options.items() if name in names})


def known_arguments(function, **options):
    names = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in names}


class Training:
    """row: of the table. Importing megatron is left to here, behind boundary.install()."""

    def __init__(self, row):
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        boundary.without_transformer_engine()
        self.row, self.parallel_state = row, parallel_state
        dist.init_process_group("gloo")
        sizes = dict(tensor_model_parallel_size=row.get("tp", 1), pipeline_model_parallel_size=row.get("pp", 1),
                     expert_model_parallel_size=row["ep"], expert_tensor_parallel_size=row.get("etp"),
                     order=row.get("order", "tp-cp-ep-dp-pp"))
        parallel_state.initialize_model_parallel(**known_arguments(parallel_state.initialize_model_parallel, **sizes))
        torch.manual_seed(1234)
        model_parallel_cuda_manual_seed(1234)
        self.dtype = getattr(torch, row.get("dtype", "bfloat16"))
        self.config = self._config()
        self.model = [self._model()]
        self.optimizer = self._optimizer()
        self.balancer, self.losses, self.switches = None, [], []

    def _config(self):
        from megatron.core.transformer.transformer_config import TransformerConfig

        row = self.row
        options = dict(
            num_layers=row.get("layers", 2), hidden_size=64, ffn_hidden_size=96, moe_ffn_hidden_size=96,
            num_attention_heads=4,
            num_moe_experts=EXPERTS, moe_router_topk=2, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=1e-3,
            moe_token_dispatcher_type="alltoall", moe_grouped_gemm=row.get("experts", "sequential") != "sequential",
            add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=self.dtype,
            bf16=self.dtype == torch.bfloat16, pipeline_dtype=self.dtype, use_cpu_initialization=True,
            gradient_accumulation_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False,
            masked_softmax_fusion=False, apply_rope_fusion=False, tensor_model_parallel_size=row.get("tp", 1),
            pipeline_model_parallel_size=row.get("pp", 1), expert_model_parallel_size=row["ep"],
            expert_tensor_parallel_size=row.get("etp"), sequence_parallel=row.get("tp", 1) > 1,
            normalization="LayerNorm", deterministic_mode=False)
        options.update(row.get("config", {}))
        return known(TransformerConfig, **options)

    def _model(self):
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.transformer.module import Float16Module

        options = known_arguments(get_gpt_layer_local_spec, num_experts=EXPERTS,
                                  moe_grouped_gemm=self.config.moe_grouped_gemm, normalization=self.config.normalization)
        first, last = self.parallel_state.is_pipeline_first_stage(), self.parallel_state.is_pipeline_last_stage()
        model = GPTModel(self.config, get_gpt_layer_local_spec(**options), VOCABULARY, SEQUENCE, pre_process=first,
                         post_process=last, position_embedding_type="rope")
        if self.dtype != torch.float32:
            model = Float16Module(self.config, model)
        settings = known(DistributedDataParallelConfig, grad_reduce_in_fp32=True,
                         use_distributed_optimizer=self.row.get("distributed_optimizer", False))
        return DistributedDataParallel(self.config, settings, model)

    def _optimizer(self):
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        options = dict(optimizer="adam", lr=2e-3, min_lr=2e-3, weight_decay=0.01, clip_grad=0.0, params_dtype=self.dtype,
                       bf16=self.dtype == torch.bfloat16,
                       use_distributed_optimizer=self.row.get("distributed_optimizer", False))
        options.update(self.row.get("optimizer", {}))
        return get_megatron_optimizer(known(OptimizerConfig, **options), self.model)

    # ---- steps ----

    def attach(self, endpoint, job):
        from eplb_megatron import EplbMegatron

        self.balancer = EplbMegatron.attach(self.model, self.optimizer, endpoint=endpoint, job=job, vote_every=2,
                                            report_every=4, require_daemon=True)

    def run(self, steps):
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.config.finalize_model_grads_func = finalize_model_grads
        for step in range(steps):
            for chunk in self.model:
                chunk.zero_grad_buffer()
            self.optimizer.zero_grad()
            found = get_forward_backward_func()(
                forward_step_func=self._forward, data_iterator=iter(self._batches(step)), model=self.model,
                num_microbatches=MICRO_BATCHES, seq_length=SEQUENCE, micro_batch_size=BATCH, decoder_seq_length=SEQUENCE,
                forward_only=False)
            self.losses += [float(each["loss"]) for each in found]
            self.optimizer.step()
            if self.balancer is not None:
                if self.balancer.step_boundary(step).switched:
                    self.switches.append(step)
                time.sleep(0.01)  # for the daemon, on a busy machine
        return self

    def _batches(self, step):
        rank = self.parallel_state.get_data_parallel_rank()
        kinds = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
        favoured = torch.randperm(VOCABULARY, generator=kinds)[:VOCABULARY // 8]
        for number in range(MICRO_BATCHES):
            generator = torch.Generator().manual_seed((step * MICRO_BATCHES + number) * 1000 + rank)
            some = favoured[torch.randint(len(favoured), (BATCH, SEQUENCE + 1), generator=generator)]
            other = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
            yield torch.where(torch.rand(BATCH, SEQUENCE + 1, generator=generator) < 0.85, some, other)

    def _forward(self, batches, model):
        tokens = next(batches)
        positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
        mask = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool), 1)
        output = model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:])

        def loss(of_tokens):
            mean = of_tokens.float().mean()
            return mean, {"loss": mean.detach()}
        return output, loss

    # ---- what came of it ----

    def experts(self):
        """[layers, slots]: the expert in each slot; the static order without EPLB."""
        if self.balancer is None:
            return None
        return self.balancer.client.placement.physical_to_logical_map

    def parts(self):
        """(name, tensor): every parameter and buffer of this rank, and masters and moments under the parameter's name."""
        for chunk in self.model:
            yield from chunk.named_parameters()
            yield from chunk.named_buffers()  # the bias that balances loads is one
        for leaf in self.leaves():
            if not hasattr(leaf, "shard_fp32_from_float16_groups"):
                yield from parts_of_optimizer(leaf, self.names())

    def shards(self):
        """(name, tensor, first element): what a DistributedOptimizer of this rank holds of masters and moments."""
        for leaf in self.leaves():
            if hasattr(leaf, "shard_fp32_from_float16_groups"):
                yield from shards_of_optimizer(leaf, self.names())

    def leaves(self):
        return getattr(self.optimizer, "chained_optimizers", None) or [self.optimizer]

    def names(self):
        return {id(each): name for chunk in self.model for name, each in chunk.named_parameters()}

    def close(self):
        if self.balancer is not None:
            self.balancer.close()

    def result(self):
        experts = self.experts()
        numbers = {}
        if self.balancer is not None:
            numbers = {id(layer.module): layer.index for layer in self.balancer.layers}
        moe = [(name, module) for chunk in self.model for name, module in chunk.named_modules()
               if hasattr(module, "router") and hasattr(module, "experts")]
        rank = self.parallel_state.get_expert_model_parallel_rank()
        local = EXPERTS // self.row["ep"]
        held = {}
        for name, module in moe:
            row = list(range(EXPERTS))
            if experts is not None:
                row = experts[numbers[id(module)]].tolist()
            held[name] = row[rank * local:(rank + 1) * local]
        state = self.parallel_state
        stage = f"pp{state.get_pipeline_model_parallel_rank()}"
        dense, expert = state.get_tensor_model_parallel_rank(), state.get_expert_tensor_parallel_rank()

        def placed(key):
            """A key with the rank of the group that cuts the tensor, which is another one for what is an expert's."""
            return f"{stage}.etp{expert}.{key}" if "<" in key else f"{stage}.tp{dense}.{key}"

        digests = {}
        cut = {}  # key -> [(first element, tensor)], of which other ranks have the rest
        for name, tensor in self.parts():
            for key, piece in compare.pieces(name, tensor, held):
                digests[placed(key)] = compare.digest(piece)
        for name, shard, start in self.shards():
            for key, piece in compare.pieces(name, shard, held):
                cut.setdefault(placed(key), []).append((start, piece))
        digests.update(compare.digests_of_shards(cut))
        return {"losses": [value.hex() for value in self.losses], "switches": self.switches, "digests": digests}


def shards_of_optimizer(leaf, names):
    """(name, tensor, first element) of a DistributedOptimizer: its pieces of masters and state, under the parameter's
    name."""
    kinds = (("model_float16_groups", "shard_fp32_from_float16_groups", "master"),
             ("model_fp32_groups", "shard_fp32_groups", ""))
    for models_of, shards_of, kind in kinds:
        for models, shards in zip(getattr(leaf, models_of), getattr(leaf, shards_of)):
            for model, shard in zip(models, shards):
                start = leaf._get_model_param_range_map(model)["param"].start
                if kind:
                    yield f"{names[id(model)]}.{kind}", shard, start
                for key, value in leaf.optimizer.state.get(shard, {}).items():
                    if torch.is_tensor(value) and value.dim():
                        yield f"{names[id(model)]}.{key}", value, start


def parts_of_optimizer(leaf, names):
    """(name, tensor) of an optimizer of Megatron's that holds whole parameters: masters and state, under the parameter's
    name."""
    inner = getattr(leaf, "optimizer", leaf)
    if inner is None:
        return
    masters = {}
    for models, mains in zip(getattr(leaf, "float16_groups", ()), getattr(leaf, "fp32_from_float16_groups", ())):
        masters.update({id(main): names[id(model)] for model, main in zip(models, mains)})
    for group in inner.param_groups:
        for parameter in group["params"]:
            name = masters.get(id(parameter)) or names[id(parameter)]
            if id(parameter) in masters:
                yield f"{name}.master", parameter
            for key, value in inner.state.get(parameter, {}).items():
                if torch.is_tensor(value):
                    yield f"{name}.{key}", value


def stand_in(row):
    boundary.install(row.get("hollow", ()))
    for name in row.get("stand_ins", ()):
        getattr(boundary, name)()


if __name__ == "__main__":
    training_rank.run(stand_in, Training)
