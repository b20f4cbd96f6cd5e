"""Tensors of one expert each, such as the parameters of a module per expert, made rows of one memory."""

from __future__ import annotations

from typing import Any, Sequence

from eplb import _rows


def expect_alike(tensors: Sequence[Any], name: str, num_local_slots: int) -> None:
    """errors: InvalidArgument naming the tensor for a list that cannot become rows of one memory; nothing was changed."""
    for each in tensors:
        if not _rows.is_torch(each):
            raise _rows.refused(name, f"is a list that holds {type(each).__name__}, expected one torch tensor for each local "
                                      f"slot; stack numpy arrays into one [local slots, ..]")
        if _rows.is_dtensor(each):
            raise _rows.refused(name, f"is a list of DTensors: register .to_local() of each where it is a whole expert; their "
                                      f"placements are ({', '.join(str(one) for one in each.placements)})")
        _rows.expect_memory(each, name)
    if len(tensors) != num_local_slots:
        raise _rows.refused(name, f"is a list of {len(tensors)} tensors, expected one for each of the {num_local_slots} local "
                                  f"slots of this rank's GPU")
    devices = sorted({str(each.device) for each in tensors})
    if len(devices) > 1:
        raise _rows.refused(name, f"has experts on {' and on '.join(devices)}; a rank's experts lie on one device")
    first = tensors[0]
    for i, each in enumerate(tensors):
        if (each.shape, each.dtype) != (first.shape, first.dtype):
            raise _rows.refused(name, f"has experts of {_rows.described(first)} and of {_rows.described(each)}, in local slot {i}")
    if len({id(each) for each in tensors}) < len(tensors):
        raise _rows.refused(name, "has one tensor for two local slots; each expert needs its own")
    if not _lie_as_rows(tensors):
        _expect_own_memory(tensors, name)


def stacked(tensors: Sequence[Any], name: str, layer: int, role: str) -> Any:
    """[local slots, ..] whose row i is the memory of tensor i from now on. Where they are rows of one memory already, it is
    that, and nothing is copied. REQUIRES: expect_alike found nothing."""
    import torch

    first = tensors[0]
    if _lie_as_rows(tensors):
        distance = first.numel() if len(tensors) == 1 else _distance(tensors)
        with torch.no_grad():
            return torch.as_strided(first.detach(), (len(tensors), *first.shape), (distance, *first.stride()))
    from eplb.torch.pieces import ExpertTensor, Piece

    rows = ExpertTensor(name, layer, role, [Piece(each) for each in tensors], len(tensors)).rows
    return rows.view(len(tensors), *first.shape)


def _lie_as_rows(tensors: Sequence[Any]) -> bool:
    """True if they are evenly apart in one storage and do not overlap."""
    first = tensors[0]
    if not all(each.is_contiguous() for each in tensors):
        return False
    if len(tensors) == 1:
        return True
    if len({_storage(each).data_ptr() for each in tensors}) > 1 or _distance(tensors) < max(1, first.numel()):
        return False
    step = _distance(tensors)
    return all(each.storage_offset() == first.storage_offset() + i * step for i, each in enumerate(tensors))


def _distance(tensors: Sequence[Any]) -> int:
    return int(tensors[1].storage_offset() - tensors[0].storage_offset())


def _expect_own_memory(tensors: Sequence[Any], name: str) -> None:
    for i, each in enumerate(tensors):
        if _is_part_of_a_buffer(each):
            raise _rows.refused(name, f"has in local slot {i} a view of a larger buffer, which would go on without it: "
                                      f"register a view [local slots, ..] of that buffer, or give the parameter memory of its "
                                      f"own first")


def _is_part_of_a_buffer(tensor: Any) -> bool:
    return bool(_storage(tensor).nbytes() > tensor.numel() * tensor.element_size())


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
