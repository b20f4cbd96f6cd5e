"""Compares the stand-ins of tests/client/python, which every push runs, with the installed engines, so that they stay true."""

import dataclasses
import importlib
import inspect
import typing

import torch

import engine_stand_ins


def of_vllm():
    """Yields name, engine's object and stand-in."""
    policy = importlib.import_module("vllm.distributed.eplb.policy")
    state = importlib.import_module("vllm.distributed.parallel_state")
    for name in ("AbstractEplbPolicy", "DefaultEplbPolicy"):
        yield f"{name}.rebalance_experts", *(getattr(each, name).rebalance_experts for each in (policy, engine_stand_ins))
    yield "abstract methods", *(each.AbstractEplbPolicy.__abstractmethods__ for each in (policy, engine_stand_ins))
    yield "names of policies", list(policy.EPLB_POLICIES), ["default"]
    yield "get_eplb_group", list(inspect.signature(state.get_eplb_group).parameters), []
    yield "cpu_group", typing.get_type_hints(state.GroupCoordinator).get("cpu_group"), torch.distributed.ProcessGroup


def of_sglang():
    """Yields name, engine's object and stand-in."""
    algorithms, location, elastic = (importlib.import_module(f"sglang.srt.{name}") for name in (
        "eplb.eplb_algorithms", "eplb.expert_location", "elastic_ep.elastic_ep"))
    yield "rebalance_experts", algorithms.rebalance_experts, engine_stand_ins.rebalance_experts
    yield "EplbAlgorithm", *([(one.name, one.value) for one in each.EplbAlgorithm] for each in (algorithms, engine_stand_ins))
    yield "metadata's function", list(inspect.signature(location.get_global_expert_location_metadata).parameters), []
    fields = [each.name for each in dataclasses.fields(location.ExpertLocationMetadata)]
    yield "metadata", {"physical_to_logical_map", "physical_to_logical_map_cpu"} - set(fields), set()
    yield "scaled", {each.name: each.default for each in dataclasses.fields(elastic.ElasticEPState)}.get("has_scaled"), False
    yield "instance", list(inspect.signature(elastic.ElasticEPStateManager.instance).parameters), []


def described(thing):
    """Returns a function as its parameters with defaults and types, and its result; other things as they are."""
    if not callable(thing) or isinstance(thing, type):
        return thing
    hints = typing.get_type_hints(thing)
    hints.pop("algorithm", None)  # an EplbAlgorithm, whose members are compared
    return [(each.name, each.kind, each.default) for each in inspect.signature(thing).parameters.values()], hints


def check(test, engine):
    for name, installed, stand_in in of_sglang() if engine == "sglang" else of_vllm():
        with test.subTest(name):
            test.assertEqual(described(installed), described(stand_in))
