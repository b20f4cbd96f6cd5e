"""One rank of a small training of Megatron-Core on CPUs, with EPLB or without it: its real GPT model, DDP, optimizers, pipeline,
distributed checkpoint and router trace. boundary.py has what stands in for a GPU."""

import contextlib
import json
import pathlib
import types

import boundary
import forked
import torch

boundary.install()

import compare  # noqa: E402
import megatron.core.models.gpt.gpt_layer_specs as specs  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.moe.router_trace import RouterTracer  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron.core.utils import unwrap_model  # noqa: E402
from torch.distributed.checkpoint import FileSystemReader  # noqa: E402

SEQUENCE, BATCH, MICRO_BATCHES, VOCABULARY, EXPERTS = 16, 2, 2, 64, 8
PHASE_STEPS = 12  # after which other tokens come, so that other experts are hot
SAVED, LOADED = 24, 30  # steps after which a checkpoint is written, and read again


class Training:
    """row: of ROWS, with the directory of its files."""

    def __init__(self, row):
        self.row, self.directory = row, pathlib.Path(row["directory"])
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=row.get("tp", 1), pipeline_model_parallel_size=row.get("pp", 1),
            virtual_pipeline_model_parallel_size=row.get("chunks"), expert_model_parallel_size=row["ep"],
            expert_tensor_parallel_size=row.get("etp", 1))
        torch.manual_seed(1234)
        model_parallel_cuda_manual_seed(1234)
        self.dtype = getattr(torch, row.get("dtype", "bfloat16"))
        self.config = self._config()
        self.model, self.attached = [self._chunk(number) for number in range(row.get("chunks", 1))], None
        self.optimizer = self._optimizer()
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.losses, self.switches, self.endpoint, self.num_skipped = [], [], None, 0
        self.traces = [] if row.get("is_checked") else [self._trace("before")]  # it would have the forwards of check_batch

    def _config(self):
        row, tp = self.row, self.row.get("tp", 1)
        return TransformerConfig(**{**dict(
            num_layers=row.get("layers", 2), hidden_size=64, ffn_hidden_size=96, moe_ffn_hidden_size=96, num_attention_heads=4,
            num_moe_experts=EXPERTS, moe_router_topk=2, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=1e-3,
            moe_token_dispatcher_type="alltoall", moe_grouped_gemm=row.get("is_grouped", False), add_bias_linear=False,
            hidden_dropout=0.0, attention_dropout=0.0, params_dtype=self.dtype, bf16=self.dtype == torch.bfloat16,
            fp16=self.dtype == torch.float16, pipeline_dtype=self.dtype, use_cpu_initialization=True, normalization="LayerNorm",
            gradient_accumulation_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
            apply_rope_fusion=False, tensor_model_parallel_size=tp, sequence_parallel=tp > 1,
            pipeline_model_parallel_size=row.get("pp", 1), virtual_pipeline_model_parallel_size=row.get("chunks"),
            expert_model_parallel_size=row["ep"], expert_tensor_parallel_size=row.get("etp", 1),
            finalize_model_grads_func=finalize_model_grads), **row.get("config", {})})

    def _chunk(self, number):
        if self.config.sequence_parallel:
            boundary.norm_of_sequences()
        spec = specs.get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False, normalization="LayerNorm")
        if self.config.moe_grouped_gemm:
            spec = boundary.grouped_experts(spec)
        stage = number if "chunks" in self.row else None
        model = GPTModel(self.config, spec, VOCABULARY, SEQUENCE, position_embedding_type="rope", vp_stage=stage,
                         pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
                         post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage))
        if self.dtype != torch.float32:
            model = Float16Module(self.config, model)
        is_distributed = self.row.get("is_distributed", False)
        return DistributedDataParallel(self.config, DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=is_distributed, **self.row.get("ddp", {})), model)

    def _optimizer(self):
        return get_megatron_optimizer(OptimizerConfig(**{**dict(
            optimizer="adam", lr=2e-3, min_lr=2e-3, weight_decay=0.01, clip_grad=0.0, params_dtype=self.dtype,
            bf16=self.dtype == torch.bfloat16, fp16=self.dtype == torch.float16,
            use_distributed_optimizer=self.row.get("is_distributed", False),
            overlap_param_gather=self.row.get("ddp", {}).get("overlap_param_gather", False)), **self.row.get("optimizer", {})}),
            self.model)

    def _trace(self, name):
        """Megatron's router trace, which hooks routers when it is registered."""
        trace = RouterTracer(str(self.directory / name), 1000, dist.get_rank(), training_mode=True)
        trace.register_hooks(self.model)
        return trace

    # ---- steps ----

    def attach(self, endpoint, job):
        import eplb.megatron

        if self.row.get("is_page"):
            names = {"model": self.model, "optimizer": self.optimizer, "args": types.SimpleNamespace(iteration=0)}
            forked.run_page("Three lines", endpoint, names, page="quickstart-megatron.md")
            self.attached = names["attached"]
        else:
            self.attached = eplb.megatron.attach(
                self.model, self.optimizer, endpoint=endpoint, job=job, vote_every=2, report_every=4, require_daemon=True,
                boundary=self.row.get("boundary", "call"), check_batch=self._outputs if self.row.get("is_checked") else False)

    def _outputs(self):
        tokens, positions, mask, _ = arguments_of(next(self._batches(0)))
        return self.model[0](tokens, positions, mask)

    def run(self, steps):
        self.traces.append(self._trace("after"))
        for step in range(steps):
            self._train_step(step)
            if self.attached is not None and "boundary" not in self.row:
                self.attached.step_boundary()
            self._end_step(step)
        if self.attached is not None:
            self._verify()
            self.attached.detach()

    def _end_step(self, step):
        """After the boundary."""
        if self.attached is not None:
            if self.attached.last_boundary.switched:
                self.switches.append(step)
            forked.give_time(len(self.switches))
        if self.row.get("saves"):
            self._checkpoint(step)

    def _verify(self):
        import eplb.megatron

        self.attached.check()
        self.attached.check_experts(eplb.megatron.probe_of(self.attached) if self.config.moe_grouped_gemm else None)
        forked.refuses(self.attached, [lambda: self.model[0].sharded_state_dict()] if self.attached.layers else [])

    def _train_step(self, step):
        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        batches = [iter(self._batches(step)) for _ in self.model]
        found = get_forward_backward_func()(
            forward_step_func=self._forward, data_iterator=batches if len(batches) > 1 else batches[0], model=self.model,
            num_microbatches=MICRO_BATCHES, seq_length=SEQUENCE, micro_batch_size=BATCH, decoder_seq_length=SEQUENCE,
            forward_only=False)
        self.losses += [float(each["loss"]) for each in found]
        for trace in self.traces:
            trace.advance_step(step)
        is_made, _, _ = self.optimizer.step()
        self.num_skipped += not is_made

    def _batches(self, step):
        rank = parallel_state.get_data_parallel_rank()
        kinds = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
        favoured = torch.randperm(VOCABULARY, generator=kinds)[:VOCABULARY // 8]
        for number in range(MICRO_BATCHES):
            generator = torch.Generator().manual_seed((step * MICRO_BATCHES + number) * 1000 + rank)
            some = favoured[torch.randint(len(favoured), (BATCH, SEQUENCE + 1), generator=generator)]
            other = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
            yield torch.where(torch.rand(BATCH, SEQUENCE + 1, generator=generator) < 0.85, some, other)

    def _forward(self, batches, model):
        tokens, positions, mask, labels = arguments_of(next(batches))
        output = model(tokens, positions, mask, labels=labels)

        def loss(of_tokens):
            mean = of_tokens.float().mean()
            return mean, {"loss": mean.detach()}
        return output, loss

    # ---- checkpoints ----

    def _checkpoint(self, step):
        """Saves and loads Megatron's distributed checkpoint, while experts are moved."""
        folder = self.directory.parent / f"{self.directory.name}.checkpoint"
        # With the distributed optimizer Megatron gives all of torch's AdamW one tensor of steps when it loads.
        if step not in (SAVED, LOADED) or step == LOADED and self.row.get("is_distributed"):
            return
        with self.attached.static_order() if self.attached is not None else contextlib.nullcontext():
            state = self._sharded_state(is_loading=step == LOADED)
            if step == SAVED:
                folder.mkdir(exist_ok=True)
                dist.barrier()
                dist_checkpointing.save(state, str(folder))
            else:
                found = dist_checkpointing.load(state, str(folder))
                unwrap_model(self.model[0]).load_state_dict(found["model"])
                self.optimizer.load_state_dict(found["optimizer"])

    def _sharded_state(self, is_loading=False):
        layout = {"distrib_optim_sharding_type": "fully_reshardable"}
        model = unwrap_model(self.model[0]).sharded_state_dict(metadata=dict(layout))
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=layout)}

    # ---- what came of it ----

    def result(self):
        assert (self.num_skipped > 0) == (self.dtype == torch.float16), self.num_skipped
        rank, tensors = dist.get_rank(), {}
        for number, chunk in enumerate(self.model):
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)  # a step leaves that to the next forward
            named = {**dict(chunk.named_parameters()), **dict(chunk.named_buffers())}  # the expert bias is a buffer
            tensors.update({f"chunk {number} {name}": tensor for name, tensor in named.items()})
        for number, leaf in enumerate(getattr(self.optimizer, "chained_optimizers", None) or [self.optimizer]):
            of_groups = [each for group in leaf.optimizer.param_groups for each in group["params"]] if leaf.optimizer else []
            for place, updated in enumerate(of_groups):
                tensors[f"optimizer {number} {place}"] = updated
                tensors.update({f"optimizer {number} {place} {key}": value for key, value in leaf.optimizer.state[updated].items()
                                if torch.is_tensor(value)})
        digests = {f"rank {rank} {name}": compare.digest(tensor) for name, tensor in tensors.items()}
        for trace in self.traces:
            trace.flush()
            records = pathlib.Path(trace.output_path).read_text(encoding="utf-8").splitlines()
            assert records or not any(hasattr(module, "router") for module in self.model[0].modules())
            digests[f"rank {rank} trace {pathlib.Path(trace.output_dir).name}"] = compare.digest(
                torch.frombuffer(bytearray("\n".join(records), "utf-8"), dtype=torch.uint8))
            assert all(len(json.loads(each)["top_indices"][0]) == 2 for each in records)
        if self.row.get("saves"):
            digests.update(compare.digests_of_checkpoint(FileSystemReader(f"{self.directory}.checkpoint")))
        return {"losses": [value.hex() for value in self.losses], "switches": self.switches, "digests": digests}

    def close(self):
        assert not any("dispatch_preprocess" in module.token_dispatcher.__dict__ for chunk in self.model
                       for module in chunk.modules() if hasattr(module, "token_dispatcher"))


def arguments_of(tokens):
    """(tokens, positions, attention mask, labels) of a model."""
    positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
    return tokens[:, :-1], positions, torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool), 1), tokens[:, 1:]


def _row(key, name, world=2, ep=2, steps=44, **options):
    return {"key": key, "name": name, "world": world, "ep": ep, "steps": steps, **options}


BIAS = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 1e-2,
        "moe_shared_expert_intermediate_size": 96, "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0}

ROWS = (
    _row("push", "EP2 SequentialMLP, by the lines of the page", steps=40, is_page=True, boundary="optimizer"),
    _row("allgather", "EP2, dispatcher allgather, GLU, linear biases, check_batch", is_checked=True, config={
        "moe_token_dispatcher_type": "allgather", "gated_linear_unit": True, "add_bias_linear": True}),
    _row("fp32", "EP2 fp32, distributed optimizer", dtype="float32", is_distributed=True),
    _row("fp16", "EP2 fp16, first steps skipped by the loss scale", steps=60, dtype="float16", optimizer={
        "initial_loss_scale": 2.0 ** 32, "hysteresis": 1}),
    _row("sgd", "EP2, SGD with momentum, group-limited router, MoE recomputation, boundary by the optimizer", steps=60,
         boundary="optimizer", optimizer={"optimizer": "sgd", "lr": 0.05},
         config={"moe_router_num_groups": 4, "moe_router_group_topk": 2, "recompute_granularity": "selective",
                 "recompute_modules": ["moe"]}),
    _row("distributed", "EP2, distributed optimizer", is_distributed=True),
    _row("edp", "EP2 x DP2, distributed optimizer, expert bias, shared expert, overlapped gather", world=4, is_distributed=True,
         config=BIAS, ddp={"overlap_grad_reduce": True, "overlap_param_gather": True}),
    _row("edp_biases", "EP2 x DP2, distributed optimizer, linear biases, checkpoint", world=4, is_distributed=True, saves=True,
         config={"add_bias_linear": True}),
    _row("pipeline", "PP2 x EP2, 4 layers", world=4, pp=2, layers=4),
    _row("virtual", "PP2 x EP2, 4 layers in 2 chunks a rank", world=4, pp=2, layers=4, chunks=2),
    _row("tensor", "TP2 x EP2, sequence parallel", world=4, tp=2),
    _row("expert_tensor", "TP2 x ETP2 x EP2", world=4, tp=2, etp=2),
    _row("grouped", "EP2 TEGroupedMLP over a stand-in", is_grouped=True),
    _row("recompute", "EP2, full recomputation", config={"recompute_granularity": "full", "recompute_method": "uniform",
                                                         "recompute_num_layers": 1}),
    _row("checkpoint", "EP2, torch_dist checkpoint while moved", saves=True))

RowsTest = forked.tests_of(Training, ROWS)

if __name__ == "__main__":
    forked.main()
