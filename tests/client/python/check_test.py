"""client.check: unregistered per-expert tensors of a module and its optimizer."""

import copy
import unittest

import torch
from torch import nn

import eplb
from eplb import check

LAYERS, EXPERTS, WIDTH = 2, 4, 6


class MoeLayer(nn.Module):
    """Experts stacked by local slot, and a router over experts."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 2 * EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 8))
        self.down = nn.Parameter(torch.randn(EXPERTS, 8, WIDTH))
        self.register_buffer("amax", torch.ones(EXPERTS))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(MoeLayer() for _ in range(LAYERS))


def two_gpu_view(client):
    """A rank of an EP group of 2 GPUs: 8 experts in 8 slots, 4 of them local."""
    return view_of(client, 8)


def view_of(client, num_experts):
    """The first rank of an EP group with more GPUs."""
    client._placement.num_experts = client._placement.num_slots = num_experts
    return client


class Expert(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)


def stacked(**shapes):
    experts = nn.Module()
    for name, shape in shapes.items():
        experts.register_parameter(name, nn.Parameter(torch.randn(shape)))
    return experts


class Transformer(nn.Module):
    """A model with as many layers as local slots. Attention and norms are dense; so is the MLP of the first layer. experts:
    makes the experts of a layer."""

    def __init__(self, num_layers, num_experts, experts, hidden=5, dense_inner=7):
        super().__init__()
        self.embedding = nn.Embedding(11, hidden)
        self.layers = nn.ModuleList()
        for number in range(num_layers):
            layer = nn.Module()
            layer.norm = nn.LayerNorm(hidden)
            layer.attention = nn.Linear(hidden, 3 * hidden)
            layer.mlp = nn.Module()
            if number == 0:
                layer.mlp.dense = Expert(hidden, dense_inner)
            else:
                layer.mlp.gate = nn.Linear(hidden, num_experts, bias=False)
                layer.mlp.experts = experts()
            self.layers.append(layer)


class CheckTest(unittest.TestCase):
    def setUp(self):
        self.client = two_gpu_view(eplb.Client.connect(num_layers=LAYERS, num_experts=EXPERTS))
        self.addCleanup(self.client.close)
        self.model = Model()

    def register(self, *names, optimizer=None, keys=("exp_avg", "exp_avg_sq")):
        for number, layer in enumerate(self.model.layers):
            for name in names:
                tensor = getattr(layer, name)
                self.client.register(tensor, name=f"layers.{number}.{name}", layer=number,
                                     role="state" if name == "amax" else "weight")
                for key in keys if optimizer is not None and name != "amax" else ():
                    self.client.register(optimizer.state[tensor][key], name=f"layers.{number}.{name}.{key}", layer=number,
                                         role="state")

    def step(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        return optimizer

    def found(self, optimizer=None, ignore=()):
        return {each.name: each.reason for each in check.find_unregistered(self.client, self.model, optimizer, ignore)}

    def test_nothing_is_found_where_all_is_registered(self):
        optimizer = self.step(torch.optim.Adam(self.model.parameters()))
        self.register("up", "down", "amax", optimizer=optimizer)
        self.client.check(self.model, optimizer)

    def test_forgotten_parameters_and_buffers_are_named(self):
        self.register("up")
        self.assertEqual(set(self.found()), {"layers.0.down", "layers.1.down", "layers.0.amax", "layers.1.amax"})
        with self.assertRaisesRegex(eplb.InvalidArgument, r"check: 4 tensors look like experts' .*"
                                                          r"\"layers.0.down\" \[4, 8, 6\]: its first dimensions are those of"):
            self.client.check(self.model)
        self.client.check(self.model, ignore=("layers.*.amax", "*.down"))

    def test_frequencies_as_many_as_local_slots_in_a_module_without_experts(self):
        for layer in self.model.layers:
            layer.attention = nn.Module()
            layer.attention.register_buffer("inv_freq", torch.ones(EXPERTS))
            layer.attention.bias = nn.Parameter(torch.ones(EXPERTS))
        optimizer = self.step(torch.optim.Adam(self.model.parameters()))
        self.register("up", "down", "amax", optimizer=optimizer)
        self.client.check(self.model, optimizer)
        self.model.layers[0].expert_scale = nn.Module()
        self.model.layers[0].expert_scale.register_buffer("amax", torch.ones(EXPERTS))
        self.assertEqual(set(self.found(optimizer)), {"layers.0.expert_scale.amax"})

    def test_forgotten_optimizer_state_is_named(self):
        optimizer = self.step(torch.optim.Adam(self.model.parameters()))
        self.register("up", "down", "amax", optimizer=optimizer, keys=("exp_avg",))
        found = self.found(optimizer)
        self.assertEqual(set(found), {f"optimizer.layers.{layer}.{name}.exp_avg_sq" for layer in range(2)
                                      for name in ("up", "down")})
        self.assertEqual(set(found.values()), {"optimizer state of a registered weight"})

    def test_state_of_leaves_that_are_rows_of_a_registered_tensor(self):
        self.register("up", "down", "amax")
        leaves = [layer.up.detach()[slot].requires_grad_() for layer in self.model.layers for slot in range(EXPERTS)]
        found = self.found(self.step(torch.optim.SGD(leaves, lr=0.1, momentum=0.9)))
        self.assertEqual(len(found), LAYERS * EXPERTS)
        self.assertIn("optimizer.param_groups parameter 0.momentum_buffer", found)

    def test_a_flat_optimizer_buffer_across_experts(self):
        """Master weights and moments of a rank's experts in one piece, as bucketed optimizers hold them."""
        self.register("up", "down", "amax")
        experts = sum(layer.up.numel() + layer.down.numel() for layer in self.model.layers)
        found = self.found(self.step(torch.optim.Adam([nn.Parameter(torch.zeros(experts))])))
        self.assertIn("a flat buffer that holds several experts' weights", found.pop("optimizer.param_groups parameter 0"))
        self.assertEqual(set(found), {"optimizer.param_groups parameter 0.exp_avg",
                                      "optimizer.param_groups parameter 0.exp_avg_sq"})
        for reason in found.values():
            self.assertIn("a flat optimizer buffer across experts", reason)

    def test_master_weights_that_only_the_optimizer_holds(self):
        self.register("up", "down", "amax")
        masters = [nn.Parameter(layer.up.detach().double()) for layer in self.model.layers]
        optimizer = torch.optim.SGD([*masters, nn.Parameter(torch.zeros(WIDTH, WIDTH))], lr=0.1)
        found = self.found(optimizer)
        self.assertEqual(set(found), {f"optimizer.layers.{number}.up" for number in range(LAYERS)})
        self.assertEqual(set(found.values()), {"what the optimizer updates in the place of a registered weight"})
        for number, master in enumerate(masters):
            self.client.register(master, name=f"layers.{number}.up.master", layer=number, role="state")
        self.client.check(self.model, optimizer)

    def test_state_that_was_loaded_after_registration_is_found(self):
        optimizer = self.step(torch.optim.Adam(self.model.parameters()))
        self.register("up", "down", "amax", optimizer=optimizer)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        self.assertEqual(len(self.found(optimizer)), LAYERS * 2 * 2)

    def test_a_flat_parameter_whose_views_are_the_experts(self):
        flat = torch.zeros(LAYERS * EXPERTS * WIDTH * 8 + 10)
        for number, layer in enumerate(self.model.layers):
            begin = number * EXPERTS * WIDTH * 8
            layer.up = nn.Parameter(flat[begin:begin + EXPERTS * WIDTH * 8].view(EXPERTS, WIDTH, 8))
        self.register("up", "down", "amax")
        found = self.found(self.step(torch.optim.SGD([nn.Parameter(flat)], lr=0.1, momentum=0.9)))
        self.assertIn("a flat optimizer buffer across the experts of 8 registered rows",
                      found["optimizer.param_groups parameter 0.momentum_buffer"])

    def test_a_list_of_expert_modules(self):
        self.register("up", "down", "amax")
        self.model.experts = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(EXPERTS))
        found = self.found()
        self.assertEqual(set(found), {"experts.*.weight", "experts.*.bias"})
        self.assertIn("4 of one shape, as many as local slots; stack them", found["experts.*.weight"])

    def test_lists_of_parameters_and_of_names_with_numbers(self):
        self.register("up", "down", "amax")
        self.model.w1 = nn.ParameterList(nn.Parameter(torch.randn(5, 6)) for _ in range(EXPERTS))
        self.model.grouped = nn.Module()
        for number in range(EXPERTS):
            self.model.grouped.register_parameter(f"weight{number}", nn.Parameter(torch.randn(5, 6)))
            self.model.grouped.register_buffer(f"amax_{number}", torch.zeros(7))
            self.model.add_module(f"expert{number}", nn.Linear(WIDTH, 3, bias=False))
        self.assertEqual(set(self.found()), {"w1.*", "grouped.weight*", "grouped.amax_*", "expert*.weight"})

    def patterns_silence(self, client, module, optimizer=None):
        """Checks that the pattern of each finding silences it, alone and with the others. returns: names."""
        found = check.find_unregistered(client, module, optimizer)
        for each in found:
            rest = {other.name for other in check.find_unregistered(client, module, optimizer, each.ignore)}
            self.assertNotIn(each.name, rest)
        self.assertEqual(check.find_unregistered(client, module, optimizer, [each.ignore for each in found]), [])
        return {each.name for each in found}

    def transformer(self, local, gpus, experts, **shape):
        """`local` layers as local slots; the first is dense. returns: the client and the model."""
        client = view_of(eplb.Client.connect(num_layers=local - 1, num_experts=local), local * gpus)
        self.addCleanup(client.close)
        return client, Transformer(local, local * gpus, experts, **shape)

    def test_as_many_dense_layers_as_local_slots(self):
        """16 transformer layers, 64 experts, 4 GPUs: every dense parameter is one of 16 of its shape."""
        client, model = self.transformer(16, 4, lambda: stacked(up=(16, 5, 9), down=(16, 9, 5)))
        self.assertEqual({name.split(".")[4] for name in self.patterns_silence(client, model)}, {"up", "down"})
        for number, layer in enumerate(model.layers[1:]):
            client.register(layer.mlp.experts.up, name=f"{number}.up", layer=number)
        self.assertEqual({name.split(".")[4] for name in self.patterns_silence(client, model)}, {"down"})
        for number, layer in enumerate(model.layers[1:]):
            client.register(layer.mlp.experts.down, name=f"{number}.down", layer=number)
        client.check(model)

    def test_as_many_dense_layers_as_local_experts_in_a_list(self):
        client, model = self.transformer(4, 2, lambda: nn.ModuleList(Expert(5, 9) for _ in range(4)))
        names = {f"layers.{layer}.mlp.experts.*.{name}" for layer in range(1, 4)
                 for name in ("up.weight", "up.bias", "down.weight", "down.bias")}
        self.assertEqual(self.patterns_silence(client, model), names)
        for number, layer in enumerate(model.layers[1:]):
            rows = torch.stack([expert.up.weight.data for expert in layer.mlp.experts])
            for expert, row in zip(layer.mlp.experts, rows):
                expert.up.weight.data = row
            client.register(rows, name=f"{number}.up", layer=number)
        self.assertEqual(self.patterns_silence(client, model), {name for name in names if "up.weight" not in name})

    def test_layers_beside_a_layer_with_a_router(self):
        """Multi-token prediction: a tensor beside the list says nothing of a list whose elements have all slots' rows."""
        client, model = self.transformer(4, 2, lambda: nn.ParameterList([torch.randn(4, 5, 9)]))
        for layer in model.layers[1:]:
            layer.mlp.chooses, layer.mlp.gate = layer.mlp.gate, None  # a name that tells nothing
        model.prediction = nn.Module()
        model.prediction.gate = nn.Linear(5, 8, bias=False)
        for number, layer in enumerate(model.layers[1:]):
            client.register(layer.mlp.experts[0], name=f"{number}.experts", layer=number)
        client.check(model)

    def test_a_list_of_modules_of_which_one_tensor_each_is_registered(self):
        """No name tells that they are experts."""
        client = two_gpu_view(eplb.Client.connect(num_layers=1, num_experts=4))
        self.addCleanup(client.close)
        model = nn.Module()
        model.feed_forward = nn.ModuleList(Expert(5, 9) for _ in range(4))
        model.blocks = nn.ModuleList(nn.Linear(5, 6) for _ in range(4))
        client.check(model)
        rows = torch.stack([expert.up.weight.data for expert in model.feed_forward])
        for expert, row in zip(model.feed_forward, rows):
            expert.up.weight.data = row
        client.register(rows, name="up", layer=0)
        self.assertEqual(self.patterns_silence(client, model),
                         {f"feed_forward.*.{name}" for name in ("up.bias", "down.weight", "down.bias")})

    def test_a_dense_bias_as_long_as_all_local_experts_biases(self):
        client, model = self.transformer(4, 2, lambda: stacked(weight=(4, 5, 5), bias=(4, 5)), dense_inner=20)  # a bias [4 * 5] beside 4 experts' [5]
        optimizer = self.step(torch.optim.Adam(model.parameters()))
        for number, layer in enumerate(model.layers[1:]):
            for name, tensor in layer.mlp.experts.named_parameters():
                client.register(tensor, name=f"{number}.{name}", layer=number)
                for key in ("exp_avg", "exp_avg_sq"):
                    client.register(optimizer.state[tensor][key], name=f"{number}.{name}.{key}", layer=number, role="state")
        client.check(model, optimizer)

    def test_masters_outside_of_module_names_are_those_of_their_parameters(self):
        """Float32 masters in the place of parameters, in the order of parameters, group by group."""
        client, model = self.transformer(4, 2, lambda: stacked(weight=(4, 5, 5), bias=(4, 5)), dense_inner=20)
        for number, layer in enumerate(model.layers[1:]):
            for name, tensor in layer.mlp.experts.named_parameters():
                client.register(tensor, name=f"{number}.{name}", layer=number)
        named = list(model.named_parameters())
        masters = {name: nn.Parameter(tensor.detach().double().flatten()) for name, tensor in named}
        optimizer = torch.optim.SGD([{"params": [masters[name] for name, _ in named if "experts" not in name]},
                                     {"params": [masters[name] for name, _ in named if "experts" in name]}],
                                    lr=0.1, momentum=0.9)
        self.step(optimizer)
        experts = [name for name in masters if "experts" in name]
        self.assertEqual(self.patterns_silence(client, model, optimizer),
                         {f"optimizer.{name}{key}" for name in experts for key in ("", ".momentum_buffer")})
        for name in experts:
            layer = int(name.split(".")[1]) - 1
            client.register(masters[name].data.view(4, -1), name=f"{name}.master", layer=layer, role="state")
            momentum = optimizer.state[masters[name]]["momentum_buffer"]
            client.register(momentum.view(4, -1), name=f"{name}.momentum", layer=layer, role="state")
        client.check(model, optimizer)

    def test_masters_that_may_be_of_one_parameter_or_another_are_looked_at_by_themselves(self):
        """Two flat ones of 192 elements, where two parameters of that size are registered and two are not."""
        self.register("up", "amax")
        masters = [nn.Parameter(torch.zeros(192, dtype=torch.float64)) for _ in range(LAYERS)]
        optimizer = torch.optim.SGD(masters, lr=0.1)
        self.assertEqual(set(self.found(optimizer)) - set(self.found()),
                         {f"optimizer.param_groups parameter {number}" for number in range(LAYERS)})
        self.register("down")  # now all are experts', in whatever order
        masters = [nn.Parameter(torch.zeros(192, dtype=torch.float64)) for _ in range(2 * LAYERS)]
        optimizer = torch.optim.SGD([{"params": masters[:1]}, {"params": masters[1:]}], lr=0.1)
        self.assertEqual(set(self.found(optimizer)), {f"optimizer.layers.{layer}.{name}" for layer in range(LAYERS)
                                                      for name in ("up", "down")})

    def test_a_message_names_the_patterns_that_silence(self):
        self.register("up")
        with self.assertRaisesRegex(eplb.InvalidArgument,
                                    r"\"layers\.0\.down\" \[4, 8, 6\]: .*; ignore=\[\"layers\.\*\.down\", "
                                    r"\"layers\.\*\.amax\"\] silences them where they are no experts'$"):
            self.client.check(self.model)
        self.client.check(self.model, ignore=["layers.*.down", "layers.*.amax"])
        self.register("amax")
        self.client.check(self.model, ignore="layers.*.down")  # one pattern is no list of letters

    def test_names_whose_numbers_count_no_slots(self):
        """Tensors of one shape, as many as local slots, but not numbered from 0."""
        self.register("up", "down", "amax")
        for number in range(1, EXPERTS + 1):
            self.model.add_module(f"fc{number}", nn.Linear(WIDTH, 3))
        self.client.check(self.model)

    def test_one_local_slot_is_no_clean_bill(self):
        with eplb.Client.connect(num_layers=1, num_experts=1) as client:
            client._placement.num_experts = client._placement.num_slots = 2
            module = nn.Module()
            module.up, module.down = nn.Parameter(torch.randn(1, 3, 5)), nn.Parameter(torch.randn(1, 5, 3))
            client.register(module.up, name="up", layer=0)
            with self.assertRaisesRegex(eplb.FailedPrecondition, "one local slot, .* fewer ranks, or call check_experts"):
                client.check(module)
            # Findings by memory are named all the same.
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            with self.assertRaisesRegex(eplb.InvalidArgument, "check: 1 tensor .*\"optimizer.up.momentum_buffer\""):
                client.check(module, optimizer)
            with self.assertRaisesRegex(eplb.FailedPrecondition, "one local slot"):
                client.check(module, optimizer, ignore=("optimizer.*",))

    def test_tensors_of_all_slots_on_a_rank_of_one(self):
        with eplb.Client.connect(num_layers=1, num_experts=1) as client:
            client._placement.num_experts, client._placement.num_slots = 4, 6
            module = nn.Linear(3, 6, bias=False)
            self.assertEqual([each.name for each in check.find_unregistered(client, module)], ["weight"])

    def test_after_close(self):
        self.assertFalse(self.client.closed)
        self.register("up")
        self.client.close()
        self.assertTrue(self.client.closed)
        with self.assertRaisesRegex(eplb.FailedPrecondition, "^check was called after close$"):
            self.client.check(self.model)

    def test_tensors_by_layer_and_slot_and_over_all_slots(self):
        self.register("up", "down", "amax")
        self.model.register_buffer("history", torch.zeros(LAYERS, EXPERTS, 3))
        self.client._placement.num_slots = 9
        self.model.register_buffer("of_slots", torch.zeros(9, 2))
        self.assertEqual(set(self.found()), {"history", "of_slots"})

    def test_a_parameter_that_got_other_memory_is_no_longer_registered(self):
        self.register("up", "down", "amax")
        self.model.layers[1].up.data = torch.zeros(EXPERTS, WIDTH, 8)
        self.assertEqual(set(self.found()), {"layers.1.up"})

    def test_registered_numpy_memory_counts_too(self):
        for number, layer in enumerate(self.model.layers):
            for name in ("up", "down", "amax"):
                self.client.register(getattr(layer, name).detach().numpy(), name=f"{number}.{name}", layer=number)
        self.client.check(self.model)

    def test_a_message_names_twenty(self):
        for number in range(30):
            self.model.register_buffer(f"buffer_{number}", torch.zeros(EXPERTS, 2))
        with self.assertRaisesRegex(eplb.InvalidArgument, "check: 36 tensors .* and 16 more$"):
            self.client.check(self.model)


if __name__ == "__main__":
    unittest.main()
