"""Stand-ins for a GPU, with which Megatron-Core trains on CPUs. No file of it is changed.

    import boundary
    boundary.install()        # before megatron is imported

They are: random states, streams and events, the current device, names of tensors' types, arguments that name a device, and sizes
of collectives. Triton and Transformer Engine can be imported and do nothing. Threads: one, before others start.
"""

import contextlib
import copy
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

import torch
import torch.distributed as dist

FACTORIES = ("arange", "as_tensor", "empty", "empty_like", "full", "ones", "ones_like", "rand", "randint", "randn", "tensor",
             "zeros", "zeros_like")


def install():
    torch.compile = _as_it_is  # Megatron compiles small functions, which takes half a minute
    hollow("triton")
    _random_states()
    _streams()
    _devices()
    _split_sizes()


def hollow(*names):
    """Makes packages that are not installed importable. All they have are classes that do nothing."""
    sys.meta_path.append(_HollowFinder(names))


def _as_it_is(function=None, **_):
    return _as_it_is if function is None else function


# ---- modules that are not there ----

class _HollowType(type):
    """A class that has every attribute, so that annotations, defaults, decorators and base classes can be written with it."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _hollow_class(name)

    def __or__(cls, other):
        return cls

    __ror__ = __or__


def _hollow_class(name):
    return _HollowType(name, (), {"__init__": lambda self, *_, **__: None, "__call__": lambda self, *_, **__: self,
                                  "__class_getitem__": classmethod(lambda cls, _: cls), "__module__": "hollow"})


class _HollowModule(types.ModuleType):
    __version__ = "2.20.2"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _hollow_class(name)
        setattr(self, name, made)  # the same class each time: isinstance is asked of it
        return made


class _HollowFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self._names = names

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _HollowModule(spec.name)

    def exec_module(self, module):
        module.__path__ = []


# ---- torch.cuda ----

class _Anything:
    """A stream, an event, a device that is entered: in order by itself."""

    cuda_stream = 0

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: _Anything()


class _Generators:
    def __getitem__(self, _):
        return torch.default_generator

    def __len__(self):
        return 1


def _random_states():
    cuda = torch.cuda
    cuda.default_generators = _Generators()
    for owner in (cuda, cuda.random):
        owner.get_rng_state = lambda *_, **__: torch.get_rng_state()
        owner.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.initial_seed = torch.initial_seed
    cuda.manual_seed = torch.default_generator.manual_seed
    cuda._lazy_call = lambda call, **_: call()


def _streams():
    cuda = torch.cuda
    cuda.Stream = cuda.Event = cuda.stream = cuda.device = _Anything
    cuda.current_stream = cuda.default_stream = lambda *_: _Anything()
    cuda.is_current_stream_capturing = lambda: False
    cuda.nvtx = _Anything()
    for name in ("_lazy_init", "empty_cache", "set_device", "synchronize"):
        setattr(cuda, name, lambda *_, **__: None)
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.pin_memory = lambda tensor, *_: tensor


def _devices():
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.device_count = lambda: 1
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.nn.Module.cuda = lambda module, *_, **__: module
    torch.Tensor.type = _type(torch.Tensor.type)
    for name in FACTORIES:
        setattr(torch, name, _at_home(getattr(torch, name)))
    for owner in (torch.Tensor, torch.nn.Module):
        owner.to = _to_home(owner.to)


def _on_cpu(device):
    """The CPU for what names a GPU; another thing is given back."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    return torch.device("cpu") if is_number or str(device).startswith("cuda") else device


def _type(type_of):
    """A tensor's type has the name that it would have on a GPU."""
    @functools.wraps(type_of)
    def call(tensor, dtype=None, *positional, **named):
        if dtype is None:
            return type_of(tensor).replace("torch.", "torch.cuda.")
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.")
        return type_of(tensor, dtype, *positional, **named)
    return call


def _at_home(make):
    @functools.wraps(make)
    def made(*positional, **named):
        if "device" in named:
            named["device"] = _on_cpu(named["device"])
        named.pop("pin_memory", None)
        return make(*positional, **named)
    return made


def _to_home(move):
    @functools.wraps(move)
    def moved(this, *positional, **named):
        if "device" in named:
            named["device"] = _on_cpu(named["device"])
        return move(this, *(_on_cpu(each) if isinstance(each, (str, int, torch.device)) else each for each in positional), **named)
    return moved


def _split_sizes():
    """gloo takes numbers and no tensors as sizes of an all-to-all, and only equal sizes in a gather and a reduction."""
    exchange, gather = dist.all_to_all_single, dist.all_gather

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
        sizes = [None if each is None else [int(size) for size in each] for each in (output_split_sizes, input_split_sizes)]
        return exchange(output, input, *sizes, group=group, async_op=async_op)

    def all_gather(tensors, tensor, group=None, async_op=False):
        most = max(map(len, tensors))
        if all(len(each) == most for each in tensors):
            return gather(tensors, tensor, group=group, async_op=async_op)
        padded = torch.cat([tensor, tensor.new_zeros(most - len(tensor), *tensor.shape[1:])])
        parts = [torch.empty_like(padded) for _ in tensors]
        gather(parts, padded, group=group)
        for each, part in zip(tensors, parts):
            each.copy_(part[:len(each)])

    def reduce_scatter(output, tensors, group=None):
        whole = torch.cat(tensors)
        dist.all_reduce(whole, group=group)
        output.copy_(whole.split([len(each) for each in tensors])[dist.get_rank(group)])

    dist.all_to_all_single, dist.all_gather, dist.reduce_scatter = all_to_all_single, all_gather, reduce_scatter


# ---- parts of Megatron-Core that need a GPU's library ----

def norm_of_sequences():
    """Lets Megatron use torch's layer norm where sequences are split over tensor-parallel ranks, instead of Apex's."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    def make(_, config, hidden_size, eps=1e-5, **__):
        norm = torch.nn.LayerNorm(hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = True
        return norm

    WrappedTorchNorm.__new__ = make


class GroupedLinear(torch.nn.Module):
    """transformer_engine.pytorch.GroupedLinear: a product for each expert, one after the other."""

    def __init__(self, num_gemms, in_features, out_features, bias=True, return_bias=False, params_dtype=None, **_):
        super().__init__()
        self.num_gemms, self.use_bias, self.apply_bias, self.return_bias = num_gemms, bias, bias and not return_bias, return_bias
        self.in_features, self.out_features, self.tp_size = in_features, out_features, 1
        self.fp8_meta, self.fp8, self.fp8_calibration = {"fp8_checkpoint": False}, False, False
        self.delay_wgrad_compute = self.fuse_wgrad_accumulation = False
        for number in range(num_gemms):
            weight = torch.randn(out_features, in_features) * 0.02
            self.register_parameter(f"weight{number}", torch.nn.Parameter(weight.to(params_dtype)))
            if bias:
                self.register_parameter(f"bias{number}", torch.nn.Parameter(torch.zeros(out_features, dtype=params_dtype)))

    def init_fp8_metadata(self, num_gemms=1):
        pass

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass

    def forward(self, rows, m_splits, is_first_microbatch=None, **_):
        parts = torch.split(rows, m_splits.tolist() if torch.is_tensor(m_splits) else m_splits)
        biases = [getattr(self, f"bias{number}") for number in range(self.num_gemms)] if self.use_bias else []
        found = torch.cat([torch.nn.functional.linear(part, getattr(self, f"weight{number}"),
                                                      biases[number] if self.apply_bias else None)
                           for number, part in enumerate(parts)])
        return (found, biases) if self.return_bias else found


def grouped_experts(spec):
    """Returns a layer specification with Megatron's TEGroupedMLP, whose grouped linear layer is the stand-in. The rest of Megatron
    stays as it was imported without Transformer Engine."""
    import megatron.core.transformer.moe.experts as experts
    import megatron.core.utils as utils

    sys.meta_path.insert(0, _HollowFinder(("transformer_engine",)))
    import transformer_engine as engine
    import transformer_engine.pytorch as pytorch
    import transformer_engine.pytorch.fp8 as fp8

    engine.pytorch, pytorch.GroupedLinear = pytorch, GroupedLinear
    for name in ("Linear", "LayerNormLinear", "LayerNorm", "RMSNorm", "DotProductAttention", "LayerNormMLP"):
        setattr(pytorch, name, type(name, (torch.nn.Module,), {}))
    pytorch.fp8_autocast = pytorch.autocast = fp8.fp8_autocast = lambda *_, **__: contextlib.nullcontext()
    fp8.FP8GlobalStateManager = type("FP8GlobalStateManager", (), {"is_fp8_enabled": staticmethod(lambda: False)})
    utils._te_version, utils.HAVE_TE, experts.HAVE_TE = None, True, True
    name = "megatron.core.extensions.transformer_engine"
    before = sys.modules.pop(name)
    extension = importlib.import_module(name)
    sys.modules[name] = before
    submodules = experts.GroupedMLPSubmodules(linear_fc1=extension.TEColumnParallelGroupedLinear,
                                              linear_fc2=extension.TERowParallelGroupedLinear)
    moe = spec.submodules.mlp
    of_moe = copy.copy(moe.keywords["submodules"])
    of_moe.experts = functools.partial(experts.TEGroupedMLP, submodules=submodules)
    spec.submodules.mlp = functools.partial(moe.func, *moe.args, **{**moe.keywords, "submodules": of_moe})
    return spec
