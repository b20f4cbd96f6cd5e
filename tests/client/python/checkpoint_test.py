"""Checkpoints in logical order: another placement, another number of ranks, and what does not fit is named."""

import json
import os
import unittest
from unittest import mock

import numpy as np
import torch

import eplb
import ranks
from eplb import checkpoint

FIELDS = {"model": "tiny", "step": 7}


def write_placement(directory, num_gpus, slots):
    """A placement file of 2 layers and 8 experts, the second layer the other way round; lowest slots are primaries. Ranks may
    write it at once: it is there as a whole or not."""
    layers = [slots, slots[::-1]]
    found = [[[slot for slot, held in enumerate(layer) if held == expert] for expert in range(8)] for layer in layers]
    most = max(len(each) for layer in found for each in layer)
    replicas = [[each + [-1] * (most - len(each)) for each in layer] for layer in found]
    file = directory / f"placement-{num_gpus}-{len(slots)}.json"
    mine = file.with_suffix(f".{os.getpid()}")
    mine.write_text(json.dumps({"format": "eplb.placement.v1", "num_layers": 2, "num_logical_experts": 8,
                                "num_slots": len(slots), "num_gpus": num_gpus, "num_nodes": 1, "num_groups": 1,
                                "physical_to_logical_map": layers, "logical_to_physical_map": replicas,
                                "logical_replica_count": [[len(each) for each in layer] for layer in found]}))
    return mine.replace(file)


def job(rank, directory, world, store, part, make, options):
    """part: (client, experts, dense, directory) -> the result."""
    all_gather = ranks.store_all_gather(directory, rank, world, name=store)
    with ranks.connect(directory, rank, world, all_gather=all_gather, **options) as client:
        experts = ranks.Experts(client, make)
        client.finish_registration()
        return part(client, experts, {"router/weight": torch.full((2, 3), 0.5)}, directory / "checkpoint")


def save(client, experts, dense, path):
    experts.update()
    checkpoint.save(path, client, fields=FIELDS, dense=dense)


def load(client, experts, dense, path):
    dense["router/weight"].zero_()
    fields = checkpoint.load(path, client, fields={"model": "tiny"}, dense=dense)
    experts.updates = 1
    experts.verify()  # also replicas, which save did not write
    return fields, dense["router/weight"].tolist()


def save_shards(client, experts, dense, path):
    """Each EP group holds its own half of the state."""
    for _, name, tensor in experts.tensors:
        if name != "weight":
            tensor += 1000 * (client.options.rank // 2)
    checkpoint.save(path, client, sharded_state=True)


def load_shards(client, experts, dense, path):
    checkpoint.load(path, client)
    ep_group = client.options.rank // 2
    for _, name, tensor in experts.tensors:
        if name != "weight":
            tensor -= 1000 * ep_group
    experts.verify()


def save_pieces(client, experts, dense, path):
    """Each of two ranks that share an expert holds its own half of everything."""
    for _, _, tensor in experts.tensors:
        tensor += 1000 * (client.options.rank % 2)
    checkpoint.save(path, client)


def load_pieces(client, experts, dense, path):
    checkpoint.load(path, client)
    for _, _, tensor in experts.tensors:
        tensor -= 1000 * (client.options.rank % 2)
    experts.verify()


def refused(client, experts, dense, path):
    before = [np.array(tensor) for _, _, tensor in experts.tensors]
    said = []

    def attempt(**how):
        try:
            checkpoint.load(how.pop("path", path), client, **{**dict(fields=FIELDS, dense=dense), **how})
        except eplb.FailedPrecondition as error:
            said.append(str(error))

    attempt(path=path.with_name("none"))
    attempt(fields={"model": "large"})
    attempt(fields={"vocabulary": 5})
    attempt(dense={})
    attempt(dense={**dense, "other": torch.zeros(1)})
    attempt(dense={"router/weight": torch.zeros(2, 4)})
    attempt(dense={"router/weight": torch.zeros(2, 3, dtype=torch.bfloat16)})
    for (_, _, tensor), old in zip(experts.tensors, before):
        assert (np.array(tensor) == old).all()
    return said


def mistakes(client, experts, dense, path):
    """Returns the error of each attempt on this rank; afterwards the ranks are in step, and a right save works."""
    said = []

    def attempt(call, *arguments, **how):
        try:
            call(*arguments, **how)
            said.append("")
        except eplb.FailedPrecondition as error:
            said.append(str(error))

    foreign = path.with_name("foreign")
    if client.options.rank == 0:
        foreign.mkdir()
        (foreign / "precious.txt").write_text("mine")
        path.with_name("file").write_text("mine")
    attempt(checkpoint.save, path, client, fields={"step": {1, 2}})
    attempt(checkpoint.save, path, client, dense={"router": [1.0]})
    attempt(checkpoint.save, path, client, dense={"layers.0.weight": dense["router/weight"]})
    attempt(checkpoint.save, foreign, client)
    attempt(checkpoint.save, path.with_name("file"), client)
    attempt(checkpoint.load, path.with_name("none") if client.options.rank == 1 else path, client)
    attempt(checkpoint.save, str(path) + "/", client, fields={"step": np.int64(3), "shape": (1, 2)})
    attempt(checkpoint.save, str(path) + "/", client, fields={"step": np.int64(3), "shape": (1, 2)})
    attempt(checkpoint.load, path, client, fields={"step": 3, "shape": (1, 2)})
    client.close()
    attempt(checkpoint.save, path, client)
    attempt(checkpoint.load, path, client)
    return said


class CheckpointTest(ranks.RankTest):
    ORDER = [3, 1, 4, 0, 5, 7, 2, 6]

    def try_job(self, world, slots, part, make=ranks.torch_zeros, **options):
        self.number = getattr(self, "number", 0) + 1
        options = {"num_slots": len(slots), "num_gpus": world, **options}
        options["initial_placement"] = write_placement(self.directory, options["num_gpus"], slots)
        return self.run_ranks(world, job, self.directory, world, f"store-{self.number}", part, make, options)

    def run_job(self, world, *arguments, **options):
        results = self.try_job(world, *arguments, **options)
        for result in results:
            self.assertNotIsInstance(result, ranks.Failure, result)
        return results

    def test_pipeline_stages_write_one_checkpoint_that_fits_other_numbers_of_them(self):
        self.run_job(4, self.ORDER, save, num_gpus=2, pipeline_parallel_size=2)
        for world, stages, slots in ((2, 1, self.ORDER[::-1]), (4, 2, list(range(8))), (4, 1, self.ORDER)):
            for fields, _ in self.run_job(world, slots, load, num_gpus=2, pipeline_parallel_size=stages):
                self.assertEqual(fields, FIELDS)

    def test_ranks_that_share_experts_write_a_piece_each(self):
        self.run_job(4, self.ORDER, save_pieces, num_gpus=2, expert_tensor_parallel=2)
        self.run_job(8, self.ORDER[::-1], load_pieces, num_gpus=4, expert_tensor_parallel=2)
        for result in self.try_job(2, self.ORDER, load_pieces):
            self.assert_raised(result, "FailedPrecondition", "expert_tensor_parallel is 2, this run's is 1")

    def test_a_checkpoint_fits_other_placements_and_numbers_of_ranks(self):
        self.run_job(4, self.ORDER, save)
        for world, slots in ((2, list(range(8))), (4, self.ORDER[::-1]), (1, self.ORDER), (2, self.ORDER + [0, 1, 2, 3])):
            for fields, dense in self.run_job(world, slots, load):
                self.assertEqual((fields, dense), (FIELDS, [[0.5] * 3] * 2))
        self.run_job(2, self.ORDER + [3, 3, 3, 3], save, make=ranks.numpy_zeros)
        self.run_job(4, self.ORDER, load)

    def test_bfloat16_goes_through(self):
        def make(shape, dtype):
            return torch.zeros(shape, dtype=torch.bfloat16 if dtype == "float16" else getattr(torch, dtype))

        self.run_job(2, self.ORDER, save, make=make)
        self.run_job(1, list(range(8)), load, make=make)
        manifest = checkpoint.read_fields(self.directory / "checkpoint")
        self.assertEqual(manifest["tensors"]["layers.0.weight"], {"dtype": "bfloat16", "role": "weight", "layer": 0})
        result, = self.try_job(1, self.ORDER, load)
        self.assert_raised(result, "FailedPrecondition", "tensor layers.0.weight is bfloat16 [8, 3, 5], this run's is float16")

    def test_state_that_is_sharded_over_ep_groups(self):
        self.run_job(4, self.ORDER, save_shards, num_gpus=2)
        self.run_job(4, list(range(8)), load_shards, num_gpus=2)
        results = self.try_job(2, self.ORDER, load_shards)
        for result in results:
            self.assert_raised(result, "FailedPrecondition", "num_ep_groups is 2, this run's is 1")

    def test_what_does_not_fit_is_named_and_changes_nothing(self):
        self.run_job(2, self.ORDER, save)
        for said in self.run_job(2, list(range(8)), refused):
            path = self.directory / "checkpoint"
            for text, expected in zip(said, (
                    f"checkpoint {self.directory}/none: there is no checkpoint.json",
                    f"rank 0: checkpoint {path}: field model is 'tiny', this run's is 'large'",
                    "it has no field vocabulary", "it has a tensor router/weight, this run has none of that name",
                    "it has no tensor other", "tensor router/weight is float32 [2, 3], this run's is float32 [2, 4]",
                    "this run's is bfloat16 [2, 3]")):
                self.assertIn(expected, text)
            self.assertEqual(len(said), 7)

    def test_mistakes_are_named_on_every_rank_and_nothing_is_lost(self):
        results = self.run_job(2, self.ORDER, mistakes)
        self.assertEqual(results[0], results[1])
        path = self.directory / "checkpoint"
        for said, expected in zip(results[0], (
                "rank 0: field step: set is no JSON value", 'rank 0: dense tensor "router" is of type list, expected a torch tensor',
                'rank 0: tensor "layers.0.weight" is dense, and registered as experts\'',
                "foreign: a directory of that name has no checkpoint.json, so it is no checkpoint; it is left as it is",
                "file: something else than a directory has that name; it is left as it is",
                "there is no checkpoint.json", "", "", "", "save was called after close", "load was called after close"), strict=True):
            self.assertIn(expected, said) if expected else self.assertEqual(said, "")
        self.assertEqual((self.directory / "foreign" / "precious.txt").read_text(), "mine")
        self.assertEqual(checkpoint.read_fields(path)["fields"], {"step": 3, "shape": [1, 2]})
        self.assertEqual([entry.name for entry in self.directory.glob("checkpoint*")], ["checkpoint"])

    def test_a_crash_while_one_is_replaced_leaves_the_one_before(self):
        path, partial = self.directory / "checkpoint", self.directory / "checkpoint.partial"
        self.run_job(1, self.ORDER, save)
        path.rename(self.directory / "checkpoint.old")  # and then the process was killed
        with self.assertRaisesRegex(eplb.FailedPrecondition, r"checkpoint\.old is the one before, which was being replaced"):
            checkpoint.read_fields(path)
        self.run_job(1, self.ORDER, save)
        checkpoint.read_fields(path)
        self.assertFalse(partial.exists() or (self.directory / "checkpoint.old").exists())

    def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(self):
        """Losses of a computer without power: files that were not synced, and names."""
        def recorded(client, experts, dense, path):
            events, fsync, rename = [], os.fsync, os.rename

            def watched_fsync(descriptor):
                events.append(("sync", os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), path.parent)))
                fsync(descriptor)

            def watched_rename(old, new):
                events.append(("rename", os.path.relpath(new, path.parent)))
                rename(old, new)

            checkpoint.save(path, client, fields=FIELDS, dense=dense)
            with mock.patch.object(os, "fsync", watched_fsync), mock.patch.object(os, "rename", watched_rename):
                checkpoint.save(path, client, fields=FIELDS, dense=dense)
            return events, sorted(each.name for each in path.iterdir())

        results = self.run_job(2, self.ORDER, recorded)
        experts = {f"layers.{layer}.{name}.npy" for layer in range(2) for name, *_ in ranks.Experts.KINDS}
        for rank, (events, names) in enumerate(results):
            before = events[:events.index(("rename", "checkpoint.old"))] if rank == 0 else events
            synced = {os.path.relpath(name, "checkpoint.partial") for kind, name in before if kind == "sync"}
            self.assertEqual(synced, {*(names if rank == 0 else experts), "."})
        events, _ = results[0]
        self.assertEqual(events[-4:], [("sync", "checkpoint.partial"), ("rename", "checkpoint.old"), ("rename", "checkpoint"),
                                       ("sync", ".")])

    def test_a_file_of_another_type_than_the_list_says_is_named(self):
        self.run_job(1, self.ORDER, save)
        file = self.directory / "checkpoint" / "layers.0.weight.npy"
        np.save(file, np.load(file).astype(np.float64))
        result, = self.try_job(1, self.ORDER, load)
        self.assert_raised(result, "FailedPrecondition", "tensor layers.0.weight: its file has float64, checkpoint.json has")

    def test_a_forked_child_writes_nothing(self):
        def in_a_child(client, experts, dense, path):
            child = os.fork()
            if child == 0:
                checkpoint.save(path, client)
                os._exit(0 if checkpoint.load(path, client) == {} else 1)
            return os.waitpid(child, 0)[1]

        self.assertEqual(self.run_job(1, self.ORDER, in_a_child), [0])
        self.assertFalse((self.directory / "checkpoint").exists())

    def test_a_disk_that_fails_stops_all_ranks(self):
        blocked = self.directory / "blocked"
        blocked.write_text("")

        def save_below_a_file(client, experts, dense, path):
            checkpoint.save(blocked / "checkpoint", client)

        results = self.try_job(2, self.ORDER, save_below_a_file)
        for result in results:
            self.assert_raised(result, "FailedPrecondition", "rank 0: ", "Not a directory")


if __name__ == "__main__":
    unittest.main()
