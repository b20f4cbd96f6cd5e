"""Compares two trainings: losses as float bits, and SHA-256 of every tensor by logical expert."""

import hashlib
import re

# Places of an expert's number in a parameter's name: of one module each, and of one parameter each.
OF_ONE = (re.compile(r"^(.*experts\.(?:local_experts|deepspeed_experts)\.)(\d+)(\..*)$"),
          re.compile(r"^(.*experts\.linear_fc[12]\.(?:weight|bias))(\d+)(.*)$"))


def digest(tensor):
    """SHA-256 of the bytes of a torch tensor, with its type and number of elements."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    found = hashlib.sha256(f"{flat.dtype} {flat.numel()} ".encode())
    found.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return found.hexdigest()


def local_of(tensor):
    """Returns the piece of a DTensor that this rank holds, and another tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digests_on_rank(model, optimizers):
    """{key: digest} of what this rank holds of parameters, buffers and optimizer state."""
    import torch.distributed as dist

    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            tensors.update({f"{names[parameter]} {key}": value for key, value in state.items()})
    return {f"rank {dist.get_rank()} {name}": digest(local_of(tensor)) for name, tensor in tensors.items()}


def digests_of_checkpoint(reader):
    """{key: digest} of all tensors, whole. reader: a StorageReader of torch.distributed.checkpoint."""
    import torch
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    found = {}
    _load_state_dict(found, reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    leaves, _ = torch.utils._pytree.tree_flatten_with_path(found)
    return {f"saved {torch.utils._pytree.keystr(path)}": digest(value) for path, value in leaves if torch.is_tensor(value)}


def merged(ranks):
    """The digests of all ranks. errors: ValueError naming a tensor of which two ranks have different copies."""
    found = {}
    for rank, result in enumerate(ranks):
        for key, value in result["digests"].items():
            if found.setdefault(key, value) != value:
                raise ValueError(f"copies of {key} differ (rank {rank})")
    return found


def difference(off, on):
    """The first difference between two trainings in a line, or "". off, on: results of all ranks, without EPLB and with it.

    Something must have been compared, and experts must have moved: otherwise that is the difference.
    """
    for rank, (one, other) in enumerate(zip(off, on)):
        if len(one["losses"]) != len(other["losses"]):
            return f"rank {rank} has {len(other['losses'])} losses, expected {len(one['losses'])}"
        for number, (left, right) in enumerate(zip(one["losses"], other["losses"])):
            if left != right:
                return f"rank {rank} loss {number}: {float.fromhex(right)!r}, expected {float.fromhex(left)!r}"
    try:
        one, other = merged(off), merged(on)
    except ValueError as error:
        return str(error)
    lost = sorted(set(one) ^ set(other))
    if lost:
        return f"{len(lost)} tensors in one training alone, first {lost[0]}"
    wrong = sorted(key for key in one if one[key] != other[key])
    if wrong:
        return f"{len(wrong)} of {len(one)} tensors differ, first {wrong[0]}"
    if not one or not any(result["losses"] for result in off):
        return "nothing was compared"
    if not all(result["switches"] for result in on):
        return "experts did not move"
    return ""
