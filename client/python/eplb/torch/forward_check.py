"""Runs a model on one batch under several placements of its experts, and measures how far its outputs differ."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, Callable, Iterator, List, Sequence

import numpy as np
import torch
from torch import nn

from eplb.errors import DeadlineExceeded, Error, FailedPrecondition, InvalidArgument

_PAGE = "docs/attach.md"


def shuffled_experts(num_layers: int, num_experts: int) -> np.ndarray:
    """Returns a placement [layers, slots] in which all experts of a layer but one are moved along one cycle in a drawn order.

    Such a cycle commutes with no order in which a trainer may number experts, such as the reverse or round-robin, so that a
    wrong order shows.
    """
    shuffled = np.tile(np.arange(num_experts), (num_layers, 1))
    for layer, slots in enumerate(shuffled):
        order = np.random.default_rng(layer).permutation(num_experts)
        cycle = order if num_experts < 3 else order[1:]
        slots[cycle] = np.roll(cycle, 1)
    return shuffled


class Forwards:
    """Forwards of a rank's model with one batch, each with the same random numbers and buffers, in eval mode.

    batch: what the model is called with: a tensor, a tuple or list of arguments, or a dict of named ones; or () -> outputs.
    errors: InvalidArgument for several chunks without a function.
    """

    def __init__(self, chunks: Sequence[nn.Module], batch: Any) -> None:
        if not callable(batch) and len(chunks) > 1:
            raise InvalidArgument("check_forward: the model is a list of chunks: give a function () -> outputs of this rank")
        self._chunks, self._batch = chunks, batch

    @torch.no_grad()
    def outputs(self) -> List[torch.Tensor]:
        """Returns copies of all tensors of floating point numbers that the model gives; a stage of a pipeline may give none.

        errors: FailedPrecondition with the exception of the forward.
        """
        with self._left_as_before():
            try:
                found = self._call()
            except Error:
                raise
            except Exception as error:
                raise FailedPrecondition(f"check_forward: the forward failed: {type(error).__name__}: {error}") from error
            return [each.detach().clone() for each in _tensors_of(found) if each.is_floating_point()]

    def _call(self) -> Any:
        if callable(self._batch):
            return self._batch()
        if isinstance(self._batch, Mapping):
            return self._chunks[0](**self._batch)
        return self._chunks[0](*self._batch) if isinstance(self._batch, (tuple, list)) else self._chunks[0](self._batch)

    @contextlib.contextmanager
    def _left_as_before(self) -> Iterator[None]:
        modules = [module for chunk in self._chunks for module in chunk.modules()]
        training = [module.training for module in modules]
        buffers = [(buffer, buffer.clone()) for chunk in self._chunks for _, buffer in chunk.named_buffers()]
        devices = {each.device for chunk in self._chunks for each in chunk.parameters() if each.device.type == "cuda"}
        with torch.random.fork_rng(devices=list(devices)):
            try:
                for chunk in self._chunks:
                    chunk.eval()
                yield
            finally:
                for module, was_training in zip(modules, training):
                    module.training = was_training
                for buffer, value in buffers:
                    buffer.copy_(value)


class ForwardCheck:
    """Compares a model's outputs with experts in static order and shuffled. Collective; experts are in static order before and
    after.

    move: (placement before, after): carries experts, and routers follow. follow: (placement): routers alone. static: [layers,
    experts].
    """

    def __init__(self, forwards: Forwards, all_gather: Any, static: np.ndarray, move: Callable[[np.ndarray, np.ndarray], None],
                 follow: Callable[[np.ndarray], None]) -> None:
        self._forwards, self._all_gather, self._static, self._move, self._follow = forwards, all_gather, static, move, follow

    def expect_equal(self, names: Mapping[int, str], tolerance: float) -> None:
        """names: of this rank's layers, by number. tolerance: largest difference, as a share of what wrong experts change.
        errors: InvalidArgument naming layers whose experts are not where EPLB assumes; FailedPrecondition if the batch cannot
        show it."""
        shuffled = shuffled_experts(*self._static.shape)
        effect, moved, again = self._distances(shuffled)
        if not effect:
            raise FailedPrecondition("check_forward: the outputs do not depend on which expert computes, as with experts whose last "
                                     "weights are 0: check with trained weights, or call attached.check_forward after some steps")
        if _is_far(again, tolerance * effect):
            raise FailedPrecondition(f"check_forward: two forwards with one batch differ by {again / effect:.1e} of what wrong experts "
                                     f"change: the forward must be repeatable")
        if not _is_far(moved, tolerance * effect):
            return
        all_names = sorted(pair for mine in self._all_gather.objects(list(names.items())) for pair in mine)
        wrong = [name for layer, name in dict(all_names).items() if self._is_wrong(layer, shuffled, tolerance)]
        raise InvalidArgument(
            f"check_forward: with moved experts the outputs differ by {moved / effect:.1e} of what wrong experts change, in "
            f"{', '.join(wrong[:3]) or 'no single layer'}{f' and {len(wrong) - 3} more layers' if len(wrong) > 3 else ''}: rank r of "
            f"ep_group must hold experts r * n .. r * n + n - 1 in this order, and tokens must reach them by the router's "
            f"output alone ({_PAGE}); if only the order of a sum differs, give a larger tolerance")

    def _is_wrong(self, layer: int, shuffled: np.ndarray, tolerance: float) -> bool:
        alone = self._static.copy()
        alone[layer] = shuffled[layer]
        effect, moved, _ = self._distances(alone)
        return _is_far(moved, tolerance * effect)

    def _distances(self, shuffled: np.ndarray) -> Sequence[float]:
        """Returns how far all ranks' outputs are from those in static order: with routers that do not follow, with routers that
        do, and in static order again."""
        first = self._outputs()
        found = []
        self._move(self._static, shuffled)
        try:
            for slots in (self._static, shuffled):
                self._follow(slots)
                found.append(distance(self._outputs(), first))
        except Error as error:
            if not isinstance(error, DeadlineExceeded):  # all ranks are here
                self._move(shuffled, self._static)
            raise
        self._move(shuffled, self._static)
        found.append(distance(self._outputs(), first))
        if not any(self._all_gather.objects(len(first))):
            raise InvalidArgument("check_forward: the forward gave no tensor of floating point numbers on any rank")
        return [sum(each) for each in zip(*self._all_gather.objects(found))]

    def _outputs(self) -> List[torch.Tensor]:
        return self._all_gather.together(self._forwards.outputs)  # type: ignore[no-any-return]


def _is_far(found: float, limit: float) -> bool:
    return math.isinf(found) or found > limit


def distance(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """Returns the mean absolute difference of two runs' outputs, summed over tensors; inf for other shapes."""
    if [each.shape for each in outputs] != [each.shape for each in others]:
        return float("inf")
    total = 0.0
    for one, other in zip(outputs, others):
        is_same = (one == other) | (one.isnan() & other.isnan())
        difference = (one.float() - other.float()).abs().masked_fill(is_same, 0.0)
        total += float(difference.nan_to_num(1.0, 1.0).mean()) if one.numel() else 0.0
    return total


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(value):
        yield value.to_local() if hasattr(value, "to_local") else value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_of(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors_of(each)
