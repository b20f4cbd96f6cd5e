"""One rank of SGLang: its own recorder, EPLB manager, metadata and updater, with a model of weights alone, on CPUs.

Importing this module imports SGLang and installs the stand-ins for a GPU (README.md). SGLang checks each slot, too.
"""

import os
import sys
import types

os.environ["SGLANG_EXPERT_LOCATION_UPDATER_CANARY"] = "1"

import boundary  # noqa: E402
import torch  # noqa: E402

boundary.hollow("IPython", "gguf", "torchvision", "triton", "tvm_ffi")
torch.compile = lambda function=None, **_: function or (lambda each: each)  # SGLang compiles at import
torch.cpu.empty_cache = lambda: None
sys.modules["vllm"] = None  # SGLang uses vLLM's kernels if it is installed

from sglang.srt import model_loader, runtime_context  # noqa: E402
from sglang.srt.eplb import eplb_manager, expert_distribution, expert_location, expert_location_updater  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402

from experts import EXPERTS, SLOTS, Weights  # noqa: E402

NAME, PLUGINS = "SGLang", "sglang.srt.plugins"

expert_distribution.get_device = lambda: "cpu"


class Rank:
    """threads: one."""

    def __init__(self, rank, world, port, row):
        """row: "layers" (of the only model), "groups" and "nodes" of rows.py."""
        load_plugins()
        torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        runtime_context.get_context().override_server_args(
            device="cpu", tp_size=world, ep_size=world, nnodes=row["nodes"] or 1, enable_eplb=True,
            ep_num_redundant_experts=SLOTS - EXPERTS, expert_distribution_recorder_mode="stat",
            expert_distribution_recorder_buffer_size=1, eplb_rebalance_num_iterations=1).install()
        runtime_context.get_parallel().override_permanently(tp_rank=rank)
        [layers] = row["layers"]
        shape = expert_location.ModelConfigForExpertLocation(layers, EXPERTS, row["groups"])
        architecture = types.SimpleNamespace(get_model_config_for_expert_location=lambda _: shape)
        model_loader.get_model_architecture = lambda _: (architecture, "")
        config = types.SimpleNamespace(hf_config=None)
        self.ranks, self._world, self._passes = list(range(world)), world, 0
        self._metadata = expert_location.compute_initial_expert_location_metadata(config, rank)
        expert_location.set_global_expert_location_metadata(self._metadata)
        self._recorder = expert_distribution.ExpertDistributionRecorder.init_new(self._metadata, rank)
        expert_distribution.set_global_expert_distribution_recorder(self._recorder)
        self._weights = Weights(layers, SLOTS // world, rank * SLOTS // world)
        self._weights.fill(self._metadata.physical_to_logical_map)
        model = types.SimpleNamespace(routed_experts_weights_of_layer=dict(enumerate(self._weights.layers)))
        loader = types.SimpleNamespace(update_weights_from_disk=None)
        updater = expert_location_updater.ExpertLocationUpdater()
        self._manager = eplb_manager.EPLBManager(
            model_config=config, get_model=lambda: model, get_expert_location_updater=lambda: updater,
            get_expert_backup_client=lambda: None, get_weight_updater=lambda: loader)
        self._manager.on_forward_pass_end()  # the manager rebalances after each further pass

    def maps(self):
        """Returns the current map [layers, slots] of each model."""
        return [self._metadata.physical_to_logical_map.numpy().copy()]

    def rearrange(self, loads):
        """Counts loads [layers, experts] of the model, has the experts rearranged, and checks the weights."""
        [load] = loads
        first = self._metadata.logical_to_all_physical_map[:, :, 0]
        with self._recorder.with_forward_pass(self._passes, None):
            for layer, tokens in enumerate(torch.from_numpy(load) // self._world):
                with self._recorder.with_current_layer(layer):
                    self._recorder.on_select_experts(torch.repeat_interleave(first[layer], tokens))
        self._passes += 1
        self._manager.on_forward_pass_end()
        self._weights.check(self._metadata.physical_to_logical_map)
