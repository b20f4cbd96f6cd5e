"""Checks a placement as serving engines expect it, and holds loads of the recorded reference with what it made of them."""

import json
import os
import pathlib

import numpy as np
import torch

CASES = json.loads((pathlib.Path(os.environ["EPLB_DATA"]) / "deepseek_eplb.json").read_text())["cases"]
# The reference plans with loads below 0 too, which no router counts; the package refuses them.
CASES = [case for case in CASES if "error" not in case and case["name"] != "float_negative"]


def weight_of(case):
    return torch.tensor(case["weight"], dtype=getattr(torch, case["weight_dtype"]))


def peaks(load, slots, num_gpus):
    """[layers], the largest load of a GPU when the replicas of an expert share its tokens equally."""
    found = []
    for tokens, experts in zip(np.asarray(load, np.float64), np.asarray(slots)):
        shares = tokens[experts] / np.bincount(experts, minlength=len(tokens))[experts]
        found.append(shares.reshape(num_gpus, -1).sum(axis=1).max())
    return np.array(found)


def reference_peaks(case):
    return peaks(case["weight"], case["phy2log"], case["gpus"])


def check_slots(test, slots, layers, experts, num_slots, device="cpu"):
    """physical_to_logical_map: int64 [layers, slots], every expert in each layer."""
    test.assertIsInstance(slots, torch.Tensor)
    test.assertEqual((tuple(slots.shape), slots.dtype, slots.device), ((layers, num_slots), torch.int64, torch.device(device)))
    for row in slots.tolist():
        test.assertEqual(set(row), set(range(experts)))


def check_maps(test, maps, layers, experts, num_slots, device="cpu"):
    """The three maps agree with each other: replicas' counts, -1 behind the slots of an expert."""
    slots, replicas, counts = maps
    check_slots(test, slots, layers, experts, num_slots, device)
    for each, shape in ((replicas, (layers, experts, replicas.shape[-1])), (counts, (layers, experts))):
        test.assertEqual((tuple(each.shape), each.dtype, each.device), (shape, torch.int64, torch.device(device)))
    test.assertLessEqual(replicas.shape[-1], num_slots - experts + 1)
    for layer, row in enumerate(slots.tolist()):
        for expert in range(experts):
            held = [slot for slot, of in enumerate(row) if of == expert]
            given = replicas[layer, expert].tolist()
            test.assertEqual(sorted(given[:len(held)]), held)
            test.assertEqual(set(given[len(held):]) - {-1}, set())
            test.assertEqual(int(counts[layer, expert]), len(held))


def check_nodes(test, slots, experts, num_groups, num_nodes):
    """Hierarchical: each group of experts on one node, as many groups on each node."""
    for row in np.asarray(slots):
        nodes = row.reshape(num_nodes, -1) // (experts // num_groups)
        groups = [set(node.tolist()) for node in nodes]
        test.assertEqual({len(each) for each in groups}, {num_groups // num_nodes})
        test.assertEqual(len(set().union(*groups)), num_groups)
