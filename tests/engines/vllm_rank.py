"""One rank of vLLM: its own groups, EPLB state, policy and transfers, with a model of weights alone, on CPUs.

Importing this module imports vLLM and installs the stand-ins for a GPU (README.md).
"""

import os
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import boundary  # noqa: E402

boundary.hollow("xgrammar", "llguidance")

import torch  # noqa: E402
from vllm.config import DeviceConfig, ParallelConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed import parallel_state  # noqa: E402
from vllm.distributed.eplb import eplb_communicator, eplb_state  # noqa: E402
from vllm.model_executor.models.interfaces import MixtureOfExperts  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402

from experts import EXPERTS, SLOTS, Weights  # noqa: E402

NAME, PLUGINS = "vLLM", "vllm.general_plugins"
NEVER = 10 ** 6  # steps between two rearrangements, unless Rank.rearrange asks for one


class InOrder:
    """A stream or an event of a device that does everything at once."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: 0.0


eplb_state.PIN_MEMORY = eplb_communicator.PIN_MEMORY = False
torch.Event = torch.Stream = torch.accelerator.current_stream = InOrder
torch.accelerator.set_stream = torch.accelerator.set_device_index = lambda *_: None
torch.accelerator.current_accelerator = lambda *_, **__: torch.device("cpu")


class Layer:
    """A MoE layer: its weights, and what vLLM's router reads."""

    def __init__(self, weights):
        self._weights, self.eplb_state = weights, eplb_state.EplbLayerState()

    def get_expert_weights(self):
        return self._weights

    def set_eplb_state(self, **state):
        self.eplb_state.set_layer_state(**state)


class Model(MixtureOfExperts):
    """A model that vLLM counts, plans and moves experts for. It is its own configuration as well, which names it."""

    def __init__(self, number, layers, groups, rank, ranks):
        self.model = f"model-{number}"
        self.num_moe_layers, self.num_expert_groups = layers, groups
        self.num_logical_experts = self.num_routed_experts = EXPERTS
        self.num_physical_experts, self.num_local_physical_experts = SLOTS, SLOTS // ranks
        self.num_redundant_experts, self.num_shared_experts = SLOTS - EXPERTS, 0
        self.weights = Weights(layers, SLOTS // ranks, rank * SLOTS // ranks, number)
        self.moe_layers = [Layer(each) for each in self.weights.layers]

    def compute_hash(self):
        return self.model


class Rank:
    """threads: one, beside those of vLLM."""

    def __init__(self, rank, world, port, row):
        """row: "is_async", "stages", "layers" (of each model), "groups" and "nodes" of rows.py."""
        load_general_plugins()
        stages = row["stages"]
        config = VllmConfig(device_config=DeviceConfig("cpu"), parallel_config=ParallelConfig(
            tensor_parallel_size=world // stages, pipeline_parallel_size=stages))
        parallel = config.parallel_config
        parallel.enable_eplb = True  # the constructor refuses it without a GPU
        options = parallel.eplb_config
        options.use_async, options.communicator = row["is_async"], "torch_gloo"
        options.window_size, options.step_interval = 1, NEVER
        with set_current_vllm_config(config):
            parallel_state.init_distributed_environment(world, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
            parallel_state.initialize_model_parallel(world // stages, stages)
        parallel_state._NODE_COUNT = row["nodes"] or parallel_state._NODE_COUNT
        group = parallel_state.get_ep_group()
        self.ranks = group.ranks
        self._world = world // stages
        self._state = eplb_state.EplbState(parallel, torch.device("cpu"))
        self._state.device_index = 0
        self._models = [Model(number, layers, row["groups"], group.rank_in_group, self._world)
                        for number, layers in enumerate(row["layers"])]
        for model in self._models:
            self._state.add_model(model, model)
        self._state.start_async_loop()
        self._state.step(is_profile=True)
        for model, state in zip(self._models, self._states()):
            model.weights.fill(state.physical_to_logical_map)

    def maps(self):
        """Returns the current map [layers, slots] of each model."""
        return [state.physical_to_logical_map.numpy().copy() for state in self._states()]

    def rearrange(self, loads):
        """Counts loads [layers, experts] of each model, has the experts rearranged, and checks the weights after each step."""
        for state, load in zip(self._states(), loads):
            share = torch.from_numpy(load) // self._world
            state.expert_load_pass.zero_().scatter_(1, state.logical_to_physical_map[:, :, 0], share.int())
        self._state.expert_rearrangement_step = NEVER - 1
        self._step()
        while any(state.rebalanced for state in self._states()):
            time.sleep(0.001)  # a forward pass, beside which the worker moves a layer
            self._step()

    def _step(self):
        self._state.step()
        for model, state in zip(self._models, self._states()):
            model.weights.check(state.physical_to_logical_map)

    def _states(self):
        return list(self._state.model_states.values())
