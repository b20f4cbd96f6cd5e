"""Checkpoints are in logical order: what was saved under one placement goes on under another, as if nothing had happened."""

import json
import unittest

import training  # finds the adapter's and the tests' modules

import minimal_dist_checkpointing as dist_checkpointing
import ranks
from training import Training, differing, eplb

BEFORE, AFTER = 16, 10
RESHARDABLE, BUCKETS = ({"distrib_optim_sharding_type": kind} for kind in ("fully_reshardable", "dp_reshardable"))
ORDER = [[3, 1, 4, 0, 5, 7, 2, 6], [6, 7, 0, 1, 2, 5, 4, 3]]


def write_placement(directory, num_gpus):
    """A placement file of ORDER."""
    file = directory / f"placement-{num_gpus}.json"
    replicas = [[[layer.index(expert)] for expert in range(8)] for layer in ORDER]
    file.write_text(json.dumps({"format": "eplb.placement.v1", "num_layers": 2, "num_logical_experts": 8, "num_slots": 8,
                                "num_gpus": num_gpus, "num_nodes": 1, "num_groups": 1, "physical_to_logical_map": ORDER,
                                "logical_to_physical_map": replicas, "logical_replica_count": [[1] * 8] * 2}))
    return file


def metadata(this):
    state = this.parallel_state
    return {"ep": (state.get_expert_model_parallel_rank(), state.get_expert_model_parallel_world_size()),
            "edp_rank": training.dist.get_rank(state.get_expert_data_parallel_group())}


def sharded_entries(this, is_loading=False):
    """The experts' of model and optimizer, as Megatron asks for them: sharded by the model's sharded_state_dict."""
    model_entries = {}
    for number, layer in enumerate(this.model.layers):
        prefix = f"layers.{number}.mlp.experts."
        model_entries.update(layer.mlp.experts.sharded_state_dict(prefix=prefix, sharded_offsets=((0, number, 2),),
                                                                  metadata=metadata(this)))
    entries = dict(model_entries)
    names = {id(each): name for name, each in this.model.named_parameters()}
    experts = this.optimizer.chained_optimizers[1]
    if this.sharding:
        state = experts.sharded_state_dict(model_entries, is_loading, metadata=RESHARDABLE)
        return {**entries, **{f"{key}.{number}": entry for number, each in state.items() for key, entry in each.items()}}
    for model, main in experts.masters():
        entry = model_entries[names[id(model)]]
        for key, tensor in {"master": main.data, **experts.optimizer.state[main]}.items():
            entries[f"{key}.{names[id(model)]}"] = dist_checkpointing.optimizer_entry(entry, tensor, key)
    return entries


def save_and_stop(rank, world, directory, name, options, connecting, how):
    """Trains until the middle with moving experts, and saves."""
    this = Training(rank, world, directory, name, **options).attach(**connecting).run(BEFORE)
    assert this.switches, "no switch before the checkpoint"
    (directory / "checkpoint").mkdir(exist_ok=True)
    if how == "eplb":
        this.balancer.save(directory / "checkpoint", fields={"step": this.next_step}, dense=this.dense())
    else:
        if how == "static_order":
            with this.balancer.static_order():
                dist_checkpointing.save(sharded_entries(this), directory / "checkpoint")
        else:
            dist_checkpointing.save(sharded_entries(this), directory / "checkpoint")
        if rank == 0:
            training.torch.save(this.dense(), directory / "dense")
    saved = this.by_expert()
    return {**this.run(1).result(), "saved": saved}  # saving changed nothing


def go_on(rank, world, directory, name, options, connecting, how):
    """Loads under the placement of `connecting`, and trains to the end."""
    this = Training(rank, world, directory, name, **options)
    this.next_step = BEFORE
    training.optimizers.init_state_fn(this.optimizer.chained_optimizers[0].optimizer)
    if how == "eplb":
        this.attach(**connecting)
        assert this.balancer.load(directory / "checkpoint", fields={"step": BEFORE}, dense=this.dense()) == {"step": BEFORE}
    elif how == "without EPLB":
        load_sharded(this, directory)
    elif how == "load_then_attach":  # as setup_model_and_optimizer does
        load_sharded(this, directory)
        this.attach(**connecting)
    elif how == "static_order":
        this.attach(**connecting)
        with this.balancer.static_order():
            load_sharded(this, directory)
    else:
        this.attach(**connecting)
        with this.balancer.sharded_load():
            load_sharded(this, directory)
    this.set_adam_step(BEFORE)
    loaded = this.by_expert()
    return {**this.run(AFTER).result(), "loaded": loaded}


def load_sharded(this, directory):
    experts = this.optimizer.chained_optimizers[1]
    experts.init_state_fn(experts.optimizer)
    entries = sharded_entries(this, is_loading=True)
    found = dist_checkpointing.load(entries, directory / "checkpoint")
    for layer in range(2):
        prefix = f"layers.{layer}.mlp.experts."
        of_layer = {name[len(prefix):]: value for name, value in found.items() if name.startswith(prefix)}
        module = this.model.layers[layer].mlp.experts
        module.load_state_dict({name: value.view(module.get_parameter(name).shape) for name, value in of_layer.items()})
    names = {id(each): name for name, each in this.model.named_parameters()}
    if this.sharding:
        state = {}
        for name, (key, number) in ((name, name.split(".")) for name in found if name.count(".") == 1):
            state.setdefault(int(number), {})[key] = found[name]
        experts.load_state_dict({"param_state": state})
    for model, main in experts.masters() if not this.sharding else ():
        main.data.copy_(found[f"master.{names[id(model)]}"].view(main.shape))
        for key in ("exp_avg", "exp_avg_sq"):  # new tensors, as load_state_dict of an optimizer makes
            experts.optimizer.state[main][key] = found[f"{key}.{names[id(model)]}"].view(main.shape).clone()
    with training.torch.no_grad():
        for name, value in training.torch.load(directory / "dense").items():
            this.dense()[name].copy_(value)


def unsharded(rank, world, directory, endpoint):
    """Returns the answers of state_dict and load_state_dict before and after experts have moved. GroupedMLP has no shard for
    each.
    """
    said = []

    def attempt(call):
        try:
            call()
            said.append("done")
        except eplb.FailedPrecondition as error:
            said.append(str(error))

    this = Training(rank, world, directory, "unsharded", ep=world, experts="GroupedMLP")
    this.attach(endpoint=endpoint, job="unsharded")
    state = this.model.state_dict()
    attempt(lambda: this.model.load_state_dict(state))
    this.run(BEFORE)
    layer = next(number for number in range(2) if this.balancer.client.placement.physical_to_logical_map[number].tolist()
                 != list(range(8)))
    module = this.model.layers[layer].mlp.experts
    attempt(this.model.state_dict)
    attempt(lambda: this.model.load_state_dict(state))
    attempt(lambda: module.sharded_state_dict(metadata=metadata(this)))
    with this.balancer.static_order():
        attempt(this.model.state_dict)
        attempt(lambda: module.sharded_state_dict(metadata=metadata(this)))
        attempt(lambda: this.balancer.step_boundary(this.next_step))
    this.balancer.close()
    attempt(this.model.state_dict)
    return layer, said


def plain_after_sharded(rank, world, directory, connecting):
    """Checks that each plain load under a moved placement is refused: after a sharded save, and around a sharded load."""
    this = Training(rank, world, directory, "plain", ep=world, experts="TEGroupedMLP")
    state = {name: value.clone() for name, value in this.model.state_dict().items()}
    this.attach(**connecting)
    refused = []

    def load_plain():
        try:
            this.model.load_state_dict(state)
            refused.append(False)
        except eplb.FailedPrecondition as error:
            refused.append("load_state_dict would put" in str(error) and "balancer.sharded_load()" in str(error))

    def ask():
        for layer in this.model.layers:
            layer.mlp.experts.sharded_state_dict(metadata=metadata(this))

    ask()
    load_plain()
    with this.balancer.sharded_load():
        load_plain()  # states sharded before it do not count
        ask()
        for layer in this.model.layers:
            layer.mlp.experts.load_state_dict({name: each.data for name, each in layer.mlp.experts.named_parameters()})
        load_plain()  # used up
        ask()
    load_plain()
    return refused


def optimizer_by_slot(rank, world, directory, connecting, sharding):
    """Returns the answer of the experts' optimizer to each way of writing and reading its state under a moved placement; the
    same in static order."""
    this = Training(rank, world, directory, "state", ep=world, experts="TEGroupedMLP", sharding=sharding)
    this.attach(**connecting).run(2)
    leaf, said = this.optimizer.chained_optimizers[1], []
    state = leaf.optimizer.state_dict()
    calls = {"sharded_state_dict": lambda: leaf.sharded_state_dict({}, metadata=BUCKETS),
             "sharded_state_dict for loading": lambda: leaf.sharded_state_dict({}, True, metadata=BUCKETS),
             "get_parameter_state_dp_zero": lambda: leaf.get_parameter_state_dp_zero(),
             "save_parameter_state": lambda: leaf.save_parameter_state(str(directory / f"state-{rank}"))} if sharding else {
        "state_dict": lambda: leaf.state_dict(), "chained state_dict": lambda: this.optimizer.state_dict(),
        "load_state_dict": lambda: leaf.load_state_dict(state)}

    def attempt():
        for name, call in calls.items():
            try:
                call()
                said.append((name, "done"))
            except eplb.FailedPrecondition as error:
                said.append((name, str(error)))

    attempt()
    assert not list(directory.glob("state-*")), "something was written"
    with this.balancer.static_order():
        calls.pop("load_state_dict", None)  # it gives the optimizer other memory, which ends a run that has registered
        attempt()
    return said


class CheckpointTest(ranks.RankTest):
    def goes_on(self, saving, loading, how="sharded", how_to_load=None, worlds=(2, 2), **options):
        """A run that is saved while experts move and goes on under ORDER, or without EPLB, loads every bit, and ends as one
        that was never interrupted: bit-equal in groups of the same size. In others an expert's gradient is a sum of other
        parts, and equal to rounding."""
        saved_in, loaded_in = worlds
        straight = self.succeed(saved_in, training.plain, saved_in, self.directory, "straight", BEFORE + AFTER,
                                {**options, "ep": saving})[0]
        daemon = self.start_daemon()
        first = self.succeed(saved_in, save_and_stop, saved_in, self.directory, "first", {**options, "ep": saving},
                             {"endpoint": daemon.endpoint, "job": "first"}, how)[0]
        self.assertEqual(first["losses"], straight["losses"][:BEFORE + 1])
        self.assertNotEqual(first["slots"].tolist(), ORDER)
        connecting = {"initial_placement": write_placement(self.directory, loading)}
        second = self.succeed(loaded_in, go_on, loaded_in, self.directory, "second", {**options, "ep": loading}, connecting,
                              how_to_load or how)[0]
        self.assertEqual(differing(first["saved"], second["loaded"]), [])
        if how_to_load != "without EPLB":
            self.assertEqual(second["slots"].tolist(), ORDER)
        if saving == loading:
            self.assertEqual(second["losses"], straight["losses"][BEFORE:])
            self.assertEqual(differing(second["experts"], straight["experts"]), [])
            return
        largest = max(abs(one - other) / other for one, other in zip(second["losses"], straight["losses"][BEFORE:]))
        print(f"{saving} to {loading} EP ranks: losses within {largest:.1e}")
        self.assertLess(largest, 1e-5)

    def test_eplbs_own_checkpoint(self):
        self.goes_on(2, 2, "eplb", experts="GroupedMLP")

    def test_eplbs_own_checkpoint_in_ep_groups(self):
        # Two EP ranks in two EP groups, then four EP ranks: the same tokens, and other groups.
        self.goes_on(2, 4, "eplb", worlds=(4, 4), experts="TEGroupedMLP", params_dtype=training.torch.float32)

    def test_shards_of_te_grouped_mlp_are_named_by_logical_expert(self):
        self.goes_on(2, 2, experts="TEGroupedMLP")

    def test_a_sharded_save_permits_no_plain_load(self):
        connecting = {"initial_placement": write_placement(self.directory, 2)}
        self.assertEqual(self.succeed(2, plain_after_sharded, 2, self.directory, connecting), [[True] * 4] * 2)

    def test_shards_of_sequential_mlp_fit_other_groups_of_experts(self):
        self.goes_on(4, 2, worlds=(4, 4), experts="SequentialMLP", add_bias_linear=True,
                     params_dtype=training.torch.float32)

    def test_what_megatron_loaded_is_carried_to_the_first_placement(self):
        self.goes_on(2, 2, how_to_load="load_then_attach", experts="TEGroupedMLP")

    def test_shards_of_the_distributed_optimizer(self):
        self.goes_on(2, 2, experts="TEGroupedMLP", sharding="distributed")

    def test_shards_of_the_distributed_optimizer_that_cross_experts(self):
        self.goes_on(2, 2, worlds=(4, 4), how_to_load="load_then_attach", experts="SequentialMLP", sharding="distributed",
                     add_bias_linear=True)

    def test_shards_of_the_distributed_optimizer_fit_other_groups_of_experts(self):
        self.goes_on(4, 2, worlds=(4, 4), experts="TEGroupedMLP", sharding="distributed", params_dtype=training.torch.float32)

    def test_shards_of_the_distributed_optimizer_without_eplb(self):
        self.goes_on(2, 4, how_to_load="without EPLB", worlds=(4, 4), experts="TEGroupedMLP", sharding="distributed",
                     params_dtype=training.torch.float32)

    def test_shards_go_on_without_eplb(self):
        self.goes_on(2, 2, how_to_load="without EPLB", experts="SequentialMLP")

    def test_the_distributed_optimizer_of_grouped_mlp_in_static_order(self):
        self.goes_on(2, 2, "static_order", worlds=(4, 4), experts="GroupedMLP", sharding="distributed")

    def test_optimizers_write_and_read_nothing_by_slot(self):
        connecting = {"initial_placement": write_placement(self.directory, 2)}
        by_slot = "for experts have moved: use --ckpt-format torch_dist, or `with balancer.static_order():`"
        for said in self.succeed(2, optimizer_by_slot, 2, self.directory, connecting, ""):
            self.assertEqual(said, [
                ("state_dict", f"Float16OptimizerWithFloat16Params.state_dict would write the state of experts by slot, {by_slot}"),
                ("chained state_dict", said[0][1]),
                ("load_state_dict", f"Float16OptimizerWithFloat16Params.load_state_dict would give the state of one slot's expert to "
                                    f"another's, {by_slot}"), ("state_dict", "done"), ("chained state_dict", "done")])
        (self.directory / "state").unlink()
        buckets = "DistributedOptimizer.sharded_state_dict of layout dp_reshardable would write and read buckets in the order of " \
                  "slots, for experts have moved: use --dist-ckpt-optim-fully-reshardable (before Megatron-Core 0.15 " \
                  "--ckpt-fully-parallel-save), or `with balancer.static_order():`"
        for said in self.succeed(2, optimizer_by_slot, 2, self.directory, connecting, "distributed"):
            self.assertEqual([text for _, text in said[:2]], [buckets] * 2)
            self.assertEqual([text for _, text in said[2:4]],
                             [f"DistributedOptimizer.{call} would write the state of experts by slot, {by_slot}"
                              for call in ("get_parameter_state_dp_zero", "save_parameter_state")])
            self.assertEqual([text for _, text in said[4:]], ["done"] * 4)

    def test_shards_of_whole_ranks_are_saved_and_loaded_in_static_order(self):
        self.goes_on(2, 2, "static_order", experts="GroupedMLP")

    def test_what_would_write_or_read_by_slot_is_refused(self):
        daemon = self.start_daemon()
        for layer, said in self.succeed(2, unsharded, 2, self.directory, daemon.endpoint):
            self.assertEqual(said[0], "done")
            self.assertRegex(said[1], r"^layers\.\d\.mlp\.experts: state_dict would write experts by slot, for experts have "
                                      r"moved: use --ckpt-format torch_dist, or `with balancer.static_order\(\):`$")
            self.assertRegex(said[2], "load_state_dict would put the expert of one slot into another's")
            self.assertIn(f"layers.{layer}.mlp.experts: \"experts.weight1\" is a shard of several experts", said[3])
            self.assertEqual(said[4:6], ["done", "done"])
            self.assertEqual(said[6], "step_boundary was called within static_order")
            self.assertRegex(said[7], "state_dict would write experts by slot")  # also after close


if __name__ == "__main__":
    unittest.main()
