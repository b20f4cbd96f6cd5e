"""Hooks of routers and compiled graphs: a graph that was made without a router's hook must not run in its place."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, List, Sequence

import torch
from torch import nn

from eplb.errors import FailedPrecondition
from eplb.torch.layers import ExpertLayer


def expect_not_compiled(chunks: Sequence[nn.Module], layers: Sequence[ExpertLayer]) -> None:
    """errors: FailedPrecondition naming a router in a graph of torch.compile, and what holds the graph."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    if dynamo is None:  # nothing was compiled
        return
    functions = [code for code in _compiled_functions(dynamo) if _graphs(code)]
    for chunk in chunks:
        modules = dict(chunk.named_modules())
        routers = {layer.experts if layer.router is None else layer.router for layer in layers}
        for name in (name for name, module in modules.items() if module in routers):
            for around in _around(name):
                if _graphs(getattr(modules[around].forward, "__code__", None)):
                    raise _refusal(name, around or "the model")
            for code in functions:
                if any(_refers_to(graph, name, modules[name]) for graph in _graphs(code)):
                    raise _refusal(name, code.co_name)


def guard_hooks() -> None:
    """Makes graphs that are compiled from now on depend on hooks. By default torch runs the graph of a module without hooks also for
    another instance of its class that has some, whose tokens would then go by logical expert."""
    import torch._dynamo.config as config  # only here: importing it takes a second

    if hasattr(config, "skip_nnmodule_hook_guards"):
        config.skip_nnmodule_hook_guards = False  # type: ignore[assignment]


def _refusal(name: str, holder: str) -> FailedPrecondition:
    return FailedPrecondition(f"the router {name} is in a compiled graph of {holder} already, which never calls a new hook: attach "
                              f"before the first forward, or call torch._dynamo.reset() and attach then")


def _compiled_functions(dynamo: Any) -> List[CodeType]:
    """Returns the functions at which dynamo began to compile."""
    seen = getattr(getattr(dynamo, "input_codes", None), "seen", ())
    return [code for code in (each() for each in seen) if code is not None]


def _around(name: str) -> List[str]:
    """Returns the names of a module and of all modules around it."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]


def _graphs(code: Any) -> List[Any]:
    """Returns dynamo's compiled graphs of a function."""
    return list(torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)) if isinstance(code, CodeType) else []


def _refers_to(graph: Any, name: str, router: nn.Module) -> bool:
    """True if the graph's guards hold a module of this name and type."""
    guards = str(getattr(graph, "guard_manager", ""))
    return f"('{name.rpartition('.')[2]}'), type={type(router)}" in guards
