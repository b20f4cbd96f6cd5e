"""Refusals of the adapter, by name and on all ranks, and findings of its checks."""

import types
import unittest

import training  # finds the adapter's and the tests' modules

import ranks
import torch
from training import Training, eplb


def attach(rank, world, directory, options, connecting, change=None):
    this = Training(rank, world, directory, "refused", ep=world, **options)
    if change is not None:
        change(this)
    this.attach(**connecting)


def unknown_distributed_optimizer(this):
    """One of another origin: it says nothing of what it holds."""
    kind = type("DistributedOptimizer", (), {})
    this.optimizer.chained_optimizers[1] = kind()


def fully_sharded(this):
    this.optimizer.chained_optimizers[1].ddp_config.use_megatron_fsdp = True


def in_host_memory(this):
    experts = this.optimizer.chained_optimizers[1]
    experts.optimizer.__class__ = type("HybridDeviceOptimizer", (type(experts.optimizer),), {})


def weights_without_masters(this):
    """Weights that were loaded behind the optimizer's back."""
    with torch.no_grad():
        next(each for name, each in this.model.named_parameters() if ".experts." in name).add_(1)


def scaled_state(rank, world, directory):
    this = Training(rank, world, directory, "scaled", ep=world, experts="TEGroupedMLP", sharding="distributed+precision_aware")
    this.attach()
    inner = this.optimizer.chained_optimizers[1].optimizer

    def scale(this):
        inner._scales = {}
        for state in inner.state.values():
            state["exp_avg"] = state["exp_avg"].half()

    this.run(1, after=scale)


def old_groups(rank, world, directory):
    """Functions of parallel_state in Megatron-Core 0.9."""
    this = Training(rank, world, directory, "old", ep=world)
    names = ("get_expert_model_parallel_group", "get_expert_model_parallel_rank", "get_expert_model_parallel_world_size",
             "get_pipeline_model_parallel_rank", "get_pipeline_model_parallel_world_size")
    this.parallel_state = types.SimpleNamespace(**{name: getattr(this.parallel_state, name) for name in names})
    this.attach()


def stage_without_layers_skips(rank, world, directory):
    """The second pipeline stage has no MoE layer, and the first step is skipped on all."""
    this = Training(rank, world, directory, "empty", ep=1, pp=2)
    for parameter in this.model.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    if this.parallel_state.pipeline_stage == 1:
        this.model.layers = torch.nn.ModuleList()
    this.attach().balancer.step_boundary(0)
    return True


def flat_shard_by_another_name(this):
    """Piece of a parameter's master after sharding, for any name of the class."""
    experts = this.optimizer.chained_optimizers[1]
    main = experts.fp32_from_float16_groups[0][0]
    main.data = main.data.flatten()[:100].clone()


def half_without_an_optimizer(this):
    del this.optimizer.chained_optimizers[1]


def buffer_of_an_expert(this):
    this.model.layers[1].mlp.experts.register_buffer("amax", torch.zeros(4))


def buffer_on_one_rank(this):
    if this.rank == 1:
        buffer_of_an_expert(this)


def attached_already(this):
    this.attach()


def late_state(rank, world, directory):
    """State that the optimizer makes after everything was registered."""
    this = Training(rank, world, directory, "late", ep=world, experts="SequentialMLP").attach().run(2)
    this.balancer.check()
    inner = this.optimizer.chained_optimizers[1].optimizer
    for main in inner.state:
        inner.state[main]["max_exp_avg_sq"] = torch.zeros_like(main)
    this.balancer.check()


def other_memory(rank, world, directory, change):
    this = Training(rank, world, directory, "other", ep=world, experts="TEGroupedMLP").attach().run(2)
    this.run(1, after=lambda this: change(this.model.layers[0].mlp.experts.linear_fc1))


def other_parameter(linear):
    linear.weight2 = torch.nn.Parameter(linear.weight2.detach().clone())


def other_type(linear):
    linear.weight2.data = linear.weight2.data.double()


def other_steps(rank, world, directory):
    this = Training(rank, world, directory, "steps", ep=world, adam=torch.optim.AdamW).attach()

    def advance(this):
        inner = this.optimizer.chained_optimizers[1].optimizer
        if rank == 1:
            next(iter(inner.state.values()))["step"] += 1

    this.run(1, after=advance)


def skipped_on_one_rank(rank, world, directory):
    this = Training(rank, world, directory, "skipped", ep=world).attach()
    if rank == 0:
        this.optimizer.step = lambda: None
    this.run(1)


def skipped_at_first(rank, world, directory):
    """Two steps without an update, as fp16's loss scale begins."""
    this = Training(rank, world, directory, "skipped", ep=world).attach()
    step, this.optimizer.step = this.optimizer.step, lambda: None
    this.run(2)
    before = len(this.balancer.client.registered.entries)
    this.optimizer.step = step
    this.run(6)
    return before, len(this.balancer.client.registered.entries), this.balancer.client.stats.votes


def too_early(rank, world, directory):
    this = Training(rank, world, directory, "early", ep=world).attach()
    said = []
    for call in (this.balancer.check, this.balancer.check_experts, lambda: this.balancer.save("nowhere")):
        try:
            call()
        except eplb.FailedPrecondition as error:
            said.append(str(error))
    return said


def probed(rank, world, directory, experts, forget, latent=None):
    this = Training(rank, world, directory, "probed", ep=world, experts=experts, add_bias_linear=True, moe_latent_size=latent)
    this.attach()
    training.forget(this, forget)
    this.run(3)
    before = this.balancer.client.placement.physical_to_logical_map.tolist()
    this.balancer.check_experts()
    this.run(3)
    return before == this.balancer.client.placement.physical_to_logical_map.tolist()


class RefusalTest(ranks.RankTest):
    def refused(self, *words, options=None, change=None, **connecting):
        """Every rank raises InvalidArgument with all the words."""
        for result in self.run_ranks(2, attach, 2, self.directory, options or {}, connecting, change):
            self.assert_raised(result, "InvalidArgument", *words)
        (self.directory / "refused").unlink()

    def test_flat_optimizer_buffers_are_refused_by_name(self):
        self.refused("DistributedOptimizer has no shard_fp32_from_float16_groups", change=unknown_distributed_optimizer)
        sharded = {"sharding": "distributed", "experts": "TEGroupedMLP"}
        self.refused("DistributedOptimizer updates parameters that Megatron-FSDP shards", "train without --use-megatron-fsdp",
                     options=sharded, change=fully_sharded)
        self.refused("HybridDeviceOptimizer holds state in host memory", "train without --optimizer-cpu-offload",
                     options=sharded, change=in_host_memory)
        self.refused("tensor \"layers.0.linear_fc1.weight\": the weights are not the rounded values of their fp32 masters",
                     "optimizer.reload_model_params()", options=sharded, change=weights_without_masters)
        self.refused("tensor \"layers.0.weight1.master\": has 100 elements, the parameter 8192: a flat shard",
                     "docs/registering-tensors.md", change=flat_shard_by_another_name)

    def test_replicas_are_refused(self):
        self.refused("num_slots is 10, the model has 8 experts: Megatron's dispatcher numbers num_moe_experts experts and has "
                     "no place for a replica", num_slots=10)

    def test_what_follows_from_megatron_is_no_option(self):
        self.refused("option num_gpus: it follows from the model and Megatron's parallel groups", num_gpus=4)
        self.refused("option endpont: there is none of this name, perhaps endpoint", endpont="nowhere")

    def test_configurations_that_eplb_would_not_be_right_for(self):
        for option, value, why in (
                ("moe_expert_capacity_factor", 1.0, "no load can be read off it"),
                ("moe_pad_expert_input_to_capacity", True, "dropless training"),
                ("moe_expert_rank_capacity_factor", 1.5, "what is dropped depends on which experts are on it"),
                ("moe_paged_stash", True, "a rank's budget of tokens"), ("fp4", "e2m1", "depend on the placement"),
                ("moe_single_grouped_weight", True, "one GroupedTensor")):
            self.refused(f"layers.0.mlp: {option} is set", why, options={option: value})
        self.refused("layers.0.mlp: transformer_impl is inference_optimized", "InferenceGroupedMLP",
                     options={"transformer_impl": "inference_optimized"})
        self.refused("layers.0.mlp: fp8_recipe is delayed", options={"fp8": "hybrid"})
        self.refused("layers.1.mlp.experts has the buffer amax", change=buffer_of_an_expert)
        self.refused("layers.0.mlp is attached already", change=attached_already)
        self.refused("tensor \"layers.0.weight1\": no optimizer of this rank updates it", change=half_without_an_optimizer)

    def test_what_one_rank_refuses_all_ranks_refuse(self):
        others, own = self.run_ranks(2, attach, 2, self.directory, {}, {}, buffer_on_one_rank)
        self.assert_raised(own, "InvalidArgument", "layers.1.mlp.experts has the buffer amax")
        self.assert_raised(others, "FailedPrecondition", "rank 1: layers.1.mlp.experts has the buffer amax")

    def test_forgotten_optimizer_state_is_found(self):
        for result in self.run_ranks(2, late_state, 2, self.directory):
            self.assert_raised(result, "InvalidArgument", "check: 16 tensors look like experts' and would stay behind",
                               "\"optimizer.layers.0.mlp.experts.local_experts.0.linear_fc1.weight.max_exp_avg_sq\" [64, 32]: "
                               "optimizer state of a registered weight")

    def test_memory_that_cannot_be_taken_over_ends_the_run(self):
        for change, said in ((other_parameter, "tensor \"layers.0.mlp.experts.linear_fc1.weight2\": is another Parameter object"),
                             (other_type, "tensor \"layers.0.linear_fc1.weight\": is float64 [64, 32] on cpu in slot 2 now")):
            for result in self.run_ranks(2, other_memory, 2, self.directory, change):
                self.assert_raised(result, "InvalidArgument", said)
            (self.directory / "other").unlink()

    def test_steps_of_adam_that_differ_are_refused(self):
        for result in self.run_ranks(2, other_steps, 2, self.directory):
            self.assert_raised(result, "FailedPrecondition", "optimizer state step is [1.0, 2.0] for different experts")

    def test_steps_without_an_update(self):
        for result in self.run_ranks(2, skipped_on_one_rank, 2, self.directory):
            self.assert_raised(result, "FailedPrecondition", "ranks [0] have no optimizer state after this step, others have")
        (self.directory / "skipped").unlink()
        # 2 layers, 2 weights each, with master and two moments.
        self.assertEqual(self.succeed(2, skipped_at_first, 2, self.directory), [(0, 16, 3)] * 2)

    def test_what_needs_registered_tensors_says_so(self):
        self.assertEqual(self.succeed(2, too_early, 2, self.directory),
                         [[f"{call} was called before the first step_boundary" for call in ("check", "check_experts", "save")]] * 2)

    def test_scaled_moments_are_refused(self):
        for result in self.run_ranks(2, scaled_state, 2, self.directory):
            self.assert_raised(result, "InvalidArgument", "tensor \"layers.0.linear_fc1.weight.exp_avg\": is float16 with a scale that "
                               "the optimizer holds elsewhere", "--exp-avg-dtype")

    def test_megatron_core_before_0_10_is_refused(self):
        for result in self.run_ranks(2, old_groups, 2, self.directory):
            self.assert_raised(result, "InvalidArgument", "parallel_state has no get_expert_data_parallel_group: the adapter needs "
                               "Megatron-Core 0.10 or later")

    def test_a_stage_without_layers_waits_for_the_others(self):
        self.assertEqual(self.succeed(2, stage_without_layers_skips, 2, self.directory), [True, True])

    def test_experts_behind_a_latent_projection(self):
        self.assertEqual(self.succeed(2, probed, 2, self.directory, "TEGroupedMLP", "", 16), [True, True])

    def test_every_expert_computes_the_same_in_all_places(self):
        for experts in ("GroupedMLP", "SequentialMLP", "TEGroupedMLP"):
            self.assertEqual(self.succeed(2, probed, 2, self.directory, experts, ""), [True, True])
            (self.directory / "probed").unlink()
        for result in self.run_ranks(2, probed, 2, self.directory, "SequentialMLP", "linear_fc2.bias"):
            self.assert_raised(result, "InvalidArgument", "it computes with a tensor that is neither registered nor rebuilt")


if __name__ == "__main__":
    unittest.main()
