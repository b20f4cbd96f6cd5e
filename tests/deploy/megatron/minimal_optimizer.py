"""Optimizers with the interface of megatron.core.optimizer's; written for tests."""

from typing import Any, Callable, Optional

import torch


class FusedAdam(torch.optim.Optimizer):
    """Adam with a step for each group and moments for each parameter, as Transformer Engine's and Apex' have it."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "step": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    init_state(self, parameter)
                first, second, gradient = state["exp_avg"], state["exp_avg_sq"], parameter.grad
                first.mul_(0.9).add_(gradient * 0.1)
                second.mul_(0.99).add_(gradient * gradient * 0.01)
                size = group["lr"] / (1 - 0.9 ** group["step"])
                parameter.sub_(size * first / ((second / (1 - 0.99 ** group["step"])).sqrt() + 1e-8))


def init_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    for key in ("exp_avg", "exp_avg_sq"):
        optimizer.state[parameter][key] = torch.zeros_like(parameter)


def init_state_fn(optimizer: torch.optim.Optimizer, config: Any = None) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                init_state(optimizer, parameter)


class MegatronOptimizer:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.config, self.init_state_fn = optimizer, None, init_state_fn

    @property
    def param_groups(self) -> "list[dict[str, Any]]":
        return self.optimizer.param_groups

    def state_dict(self) -> "dict[str, Any]":
        return self.optimizer.state_dict()

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.optimizer.load_state_dict(state)


class FP32Optimizer(MegatronOptimizer):
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.main_grad
        self.optimizer.step()

    def masters(self) -> "list[tuple[torch.Tensor, torch.Tensor]]":
        return [(each, each) for group in self.param_groups for each in group["params"]]


class Float16OptimizerWithFloat16Params(MegatronOptimizer):
    """float16_groups are the model's parameters, fp32_from_float16_groups what the inner optimizer updates."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.float16_groups, self.fp32_from_float16_groups, self.fp32_from_fp32_groups = [], [], []
        for group in optimizer.param_groups:
            halves = [each for each in group["params"] if each.dtype != torch.float32]
            wholes = [each for each in group["params"] if each.dtype == torch.float32]
            mains = [each.detach().clone().float() for each in halves]
            group["params"] = mains + wholes
            self.float16_groups.append(halves)
            self.fp32_from_float16_groups.append(mains)
            self.fp32_from_fp32_groups.append(wholes)

    def masters(self) -> "list[tuple[torch.Tensor, torch.Tensor]]":
        """(model parameter, what the inner optimizer updates)."""
        pairs = [pair for models, mains in zip(self.float16_groups, self.fp32_from_float16_groups)
                 for pair in zip(models, mains)]
        return pairs + [(each, each) for group in self.fp32_from_fp32_groups for each in group]

    @torch.no_grad()
    def step(self) -> None:
        for model, main in self.masters():
            main.grad = model.main_grad.float()
        self.optimizer.step()
        for model, main in self.masters():
            if model is not main:
                model.copy_(main)


class ChainedOptimizer(MegatronOptimizer):
    """One optimizer for what is dense, one for experts."""

    def __init__(self, chained_optimizers: "list[MegatronOptimizer]") -> None:
        self.chained_optimizers = chained_optimizers

    @property
    def optimizer(self) -> Any:  # as Megatron's says it of several
        raise AssertionError("ChainedOptimizer has more than one optimizer when accessing self.optimizer")

    def state_dict(self) -> "list[Any]":  # type: ignore[override]
        return [each.state_dict() for each in self.chained_optimizers]

    def step(self) -> None:
        for each in self.chained_optimizers:
            each.step()

    def masters(self) -> "list[tuple[torch.Tensor, torch.Tensor]]":
        return [pair for each in self.chained_optimizers for pair in each.masters()]


def set_main_grad(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> None:
    """Into DDP's buffer where the parameter has a place there."""
    if getattr(parameter, "grad_in_buffer", False):
        parameter.main_grad.copy_(gradient)
    else:
        parameter.main_grad = gradient.float()


def build(model: torch.nn.Module, adam: Callable[..., torch.optim.Optimizer] = FusedAdam,
          shard: Optional[Callable[[Any], Any]] = None) -> ChainedOptimizer:
    """Chains optimizers as Megatron does: an optimizer for the dense parameters, one for the experts', which `shard` makes, if
    given.
    """
    experts = [each for name, each in model.named_parameters() if ".experts." in name]
    dense = [each for name, each in model.named_parameters() if ".experts." not in name]
    kind = FP32Optimizer if experts[0].dtype == torch.float32 else Float16OptimizerWithFloat16Params
    of_experts = shard(experts) if shard is not None else kind(adam(experts, lr=1e-2))
    return ChainedOptimizer([kind(adam(dense, lr=1e-2)), of_experts])
