"""Where a rank stands in the groups of the expert layers, and the number that EPLB knows it by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, List, Sequence

from eplb.errors import Error, FailedPrecondition, InvalidArgument


@dataclass(frozen=True)
class Coordinates:
    """A rank's index in each of the groups of the expert layers, and the size of each group."""

    expert_tensor: int
    expert_model: int
    expert_data: int
    pipeline: int
    expert_tensor_size: int
    expert_model_size: int
    expert_data_size: int
    pipeline_parallel_size: int

    @property
    def world_size(self) -> int:
        return self.expert_tensor_size * self.expert_model_size * self.expert_data_size * self.pipeline_parallel_size

    @property
    def rank(self) -> int:
        """EPLB's rank: expert-tensor ranks fastest, then the EP rank (the GPU of an EP group), then expert-data copies, pipeline
        ranks slowest. With an expert tensor size of 1, GPU = rank % num_gpus. It is torch's rank in Megatron's default
        order tp-cp-ep-dp-pp, and another one where the pipeline is inside data parallelism."""
        of_pipeline = self.expert_data * self.expert_model_size + self.expert_model
        return (self.pipeline * self.expert_data_size * self.expert_model_size + of_pipeline) * self.expert_tensor_size \
            + self.expert_tensor


class InEplbOrder:
    """An all-gather that gives the answers in the order of EPLB's ranks, over one in the order of torch's.

    errors of the constructor: FailedPrecondition when two ranks have one place. Collective.
    """

    def __init__(self, all_gather: Callable[[bytes], Sequence[bytes]], rank: int, world_size: int) -> None:
        self.rank, self.world_size, self._all_gather = rank, world_size, all_gather
        self._places: List[int] = [int(answer) for answer in all_gather(str(rank).encode())]
        if sorted(self._places) != list(range(world_size)):
            raise FailedPrecondition(f"EPLB's ranks, in the order of torch's, are {self._places}: expected each of "
                                          f"0..{world_size - 1} once; do all ranks have the same parallel sizes?")

    def __call__(self, data: bytes) -> List[bytes]:
        answers: List[bytes] = [b""] * self.world_size
        for place, answer in zip(self._places, self._all_gather(data)):
            answers[place] = answer
        return answers

    def together(self, part: Callable[[], Any]) -> Any:
        """Does this rank's part and waits for all. returns: the part's result. Collective.

        errors: on every rank when any fails: its own error where it failed, else FailedPrecondition naming the first that
        did.
        """
        error, result = None, None
        try:
            result = part()
        except (Error, ValueError) as failure:
            error = failure
        answers = self(b"" if error is None else str(error).encode())
        if error is not None:
            raise error
        for rank, answer in enumerate(answers):
            if answer:
                raise FailedPrecondition(f"rank {rank}: {bytes(answer).decode('utf-8', 'replace')}")
        return result

    def objects(self, mine: Any) -> List[Any]:
        """JSON values of all ranks. Collective."""
        return [json.loads(answer) for answer in self(json.dumps(mine).encode())]


def agreed_experts(all_gather: InEplbOrder, mine: Sequence[int]) -> int:
    """The experts of a layer, the same in all layers of all pipeline stages. mine: of each of this rank's. Collective.

    errors: InvalidArgument when layers differ.
    """
    found = sorted({number for numbers in all_gather.objects(list(mine)) for number in numbers})
    if len(found) != 1:
        raise InvalidArgument(f"MoE layers have {found} experts: EPLB needs the same number in all")
    return int(found[0])
