"""Stand-ins for GPUs and for a newer PyTorch, so that real frameworks train on CPUs. No file of a framework is changed.

    import boundary
    boundary.install()        # before the framework is imported

Where PyTorch has a thing of its own it is left as it is. Threads: one, before others start.
"""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types

import torch
import torch.distributed as dist

# Modules of later PyTorch, and of others, that frameworks import and do not need here: whatever is taken from them is hollow.
HOLLOW = ("torch.distributed.checkpoint", "torch.distributed.tensor", "torch.distributed._tensor",
          "torch.distributed.device_mesh", "torch.distributed._functional_collectives", "torch.nn.attention",
          "torch.distributed._composable", "torch.distributed._composable_state", "torch.distributed.fsdp.fully_shard",
          "torch.distributed._symmetric_memory", "torch.compiler",
          "torch._dynamo", "torch.utils.flop_counter", "numpy.dtypes")
# Modules that PyTorch 1.13 has and Python 3.11 cannot import.
BROKEN = ("torch.distributed._shard",)
FACTORIES = ("arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "logspace",
             "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "scalar_tensor", "tensor",
             "zeros", "zeros_like")


def install(hollow=()):
    """hollow: more modules that a framework imports and that are not needed here."""
    sys.meta_path.append(_HollowFinder((*HOLLOW, *hollow)))
    sys.meta_path.insert(0, _HollowFinder(BROKEN))
    _without_compiler()
    _newer_names()
    _without_cuda()
    collectives_of_gloo()


_TE = ("TEColumnParallelGroupedLinear", "TERowParallelGroupedLinear", "TELayerNormColumnParallelLinear",
       "TEDotProductAttention", "TENorm")


def without_transformer_engine():
    """Names that some versions of Megatron-Core use and define only with Transformer Engine."""
    for module, names in (
            ("transformer.moe.moe_utils", ("te_general_gemm", "fused_permute", "fused_unpermute",
                                           "fused_sort_chunks_by_index")),
            ("models.gpt.gpt_layer_specs", _TE), ("models.gpt.moe_module_specs", _TE),
            ("transformer.moe.experts", _TE), ("transformer.moe.shared_experts", _TE)):
        try:
            found = importlib.import_module(f"megatron.core.{module}")
        except ModuleNotFoundError:
            continue
        # 0.10 builds experts of these also where no Transformer Engine is asked for.
        for name in ("ColumnParallelLinear", "RowParallelLinear"):
            if hasattr(found, name):
                _default(found, f"TE{name}", getattr(found, name))
        for name in names:
            _default(found, name, None)


def apex_norm():
    """Apex's layer norm, which Megatron-Core asks for where sequences are split over tensor-parallel ranks."""
    class FusedLayerNormAffineFunction:
        @staticmethod
        def forward(hidden, weight, bias, shape, eps):
            return torch.nn.functional.layer_norm(hidden, shape, weight, bias, eps)

        apply = forward

    _module("apex")
    _module("apex.normalization")
    _module("apex.normalization.fused_layer_norm", FusedLayerNormAffineFunction=FusedLayerNormAffineFunction)


def grouped_gemm():
    """The package grouped_gemm: a product for each expert, one after the other."""
    def gmm(rows, weights, batch_sizes, trans_b=False):
        parts = torch.split(rows, [int(each) for each in batch_sizes])
        return torch.cat([part @ (weight.t() if trans_b else weight) for part, weight in zip(parts, weights)])

    _module("grouped_gemm", ops=types.SimpleNamespace(gmm=gmm))


def deepspeed_modules():
    """Small packages that DeepSpeed imports: a reader of JSON, what the processor is, a bar of progress."""
    for name, attributes in (
            ("hjson", {"loads": json.loads, "load": json.load, "dumps": json.dumps}),
            ("cpuinfo", {"get_cpu_info": lambda: {"arch": "X86_64", "vendor_id_raw": "none", "flags": []}}),
            ("tqdm", {"tqdm": lambda each, *_, **__: each}), ("ninja", {})):
        if importlib.util.find_spec(name) is None:
            _module(name, **attributes)


def _module(name, **attributes):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(attributes)


# ---- modules that are not there ----

class _HollowType(type):
    """A class that has every attribute, so that annotations, defaults, decorators and base classes can be written with it."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return hollow_class(name)

    def __or__(cls, other):
        return cls

    __ror__ = __or__


def hollow_class(name):
    return _HollowType(name, (), {"__init__": lambda self, *_, **__: None, "__call__": lambda self, *_, **__: self,
                                  "__class_getitem__": classmethod(lambda cls, _: cls), "__module__": "hollow"})


class HollowModule(types.ModuleType):
    __version__ = "0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = hollow_class(name)
        setattr(self, name, made)  # the same class each time: isinstance is asked of it
        return made


class _HollowFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self._names = names

    def find_spec(self, fullname, path=None, target=None):
        if any(fullname == name or fullname.startswith(name + ".") for name in self._names):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return HollowModule(spec.name)

    def exec_module(self, module):
        module.__path__ = []


# ---- names of a later PyTorch ----

def _default(owner, name, value):
    if not hasattr(owner, name):
        setattr(owner, name, value)


def _newer_names():
    _default(dist, "_coalescing_manager", _one_after_the_other)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        _default(torch, name, f"no {name} here")
    for name in ("uint16", "uint32", "uint64"):
        _default(torch, name, f"no {name} here")
    for owner, name in ((importlib.import_module("torch.optim.optimizer"), "ParamsT"), (dist, "DeviceMesh")):
        _default(owner, name, hollow_class(name))
    for name in ("CUDAPluggableAllocator", "MemPool"):
        _default(torch.cuda.memory, name, hollow_class(name))
        _default(torch.cuda, name, hollow_class(name))
    _default(torch.Tensor, "untyped_storage", lambda tensor: tensor.storage().untyped())


@contextlib.contextmanager
def _one_after_the_other(*_, **__):
    yield Done()


def _without_compiler():
    torch.jit.script = _as_it_is
    torch.compile = _as_it_is


def _as_it_is(function=None, *_, **__):
    return function if function is not None else _as_it_is


# ---- torch.cuda ----

class Done:
    """A handle of work that is over."""

    def wait(self, *_):
        return True

    def is_completed(self):
        return True


class _Anything:
    """A stream, an event: in order by itself."""

    def __init__(self, *_, **__):
        self.cuda_stream, self.device = 0, torch.device("cpu")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def record_event(self, *_):
        return _Anything()

    def elapsed_time(self, *_):
        return 0.0

    def query(self):
        return True

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class _Generators:
    def __getitem__(self, _):
        return torch.default_generator

    def __len__(self):
        return 1


def on_cpu(device):
    """The CPU for what names a GPU; another thing is given back."""
    is_number = isinstance(device, int) and not isinstance(device, bool)
    return torch.device("cpu") if is_number or str(device).startswith("cuda") else device


def _without_cuda():
    cuda = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.device_count = lambda: 1
    cuda.default_generators = _Generators()
    for owner in (cuda, cuda.random):
        owner.get_rng_state = lambda *_, **__: torch.get_rng_state()
        owner.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.initial_seed = torch.initial_seed
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)
    cuda._lazy_call = lambda call, **_: call()
    cuda.Stream = cuda.Event = cuda.ExternalStream = cuda.device = cuda.stream = _Anything
    cuda.current_stream = cuda.default_stream = lambda *_: _Anything()
    cuda.get_device_capability = lambda *_: (8, 0)
    cuda.get_device_name = lambda *_: "none"
    cuda.is_current_stream_capturing = lambda: False
    cuda.nvtx = _Anything()
    for name in ("_lazy_init", "empty_cache", "ipc_collect", "manual_seed_all", "reset_peak_memory_stats", "set_device",
                 "set_stream", "synchronize"):
        setattr(cuda, name, lambda *_, **__: None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *_, **__: 0)
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 34, major=8, minor=0, name="none",
                                                                  multi_processor_count=1)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.nn.Module.cuda = lambda module, *_, **__: module
    torch.Tensor.type = _type(torch.Tensor.type)
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    for name in FACTORIES:
        setattr(torch, name, _at_home(getattr(torch, name)))
    for owner in (torch.Tensor, torch.nn.Module):
        owner.to = _to_home(owner.to)


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
            named["device"] = on_cpu(named["device"])
        named.pop("pin_memory", None)
        return make(*positional, **named)
    return made


def _to_home(move):
    @functools.wraps(move)
    def moved(this, *positional, **named):
        if "device" in named:
            named["device"] = on_cpu(named["device"])
        return move(this, *(on_cpu(each) if isinstance(each, (str, int, torch.device)) else each for each in positional), **named)
    return moved


# ---- collectives that gloo lacks, made of those that it has ----

_SMALL = (torch.bfloat16, torch.float16)


def collectives_of_gloo():
    dist.all_reduce = _all_reduce(dist.all_reduce)
    gather = dist.all_gather = _all_gather(dist.all_gather)

    def all_gather_into_tensor(output, tensor, group=None, async_op=False):
        size = dist.get_world_size(group)
        parts = [torch.empty_like(tensor) for _ in range(size)]
        gather(parts, tensor.contiguous(), group=group)
        output.copy_(torch.cat([part.reshape(-1) for part in parts]).view(output.shape))
        return Done() if async_op else None

    def reduce_scatter_tensor(output, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        whole = tensor.clone()
        dist.all_reduce(whole, op=op, group=group)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        output.copy_(whole.reshape(size, -1)[rank].view(output.shape))
        return Done() if async_op else None

    def reduce_scatter(output, tensors, op=dist.ReduceOp.SUM, group=None, async_op=False):
        whole = torch.cat([each.reshape(-1) for each in tensors])
        dist.all_reduce(whole, op=op, group=group)
        mine = whole.split([each.numel() for each in tensors])[dist.get_rank(group)]
        output.copy_(mine.view(output.shape))
        return Done() if async_op else None

    dist.all_gather_into_tensor = dist._all_gather_base = all_gather_into_tensor
    dist.reduce_scatter_tensor = dist._reduce_scatter_base = reduce_scatter_tensor
    dist.reduce_scatter = reduce_scatter
    dist.all_to_all_single, dist.all_to_all = _all_to_all_single, _all_to_all
    dist.barrier = _barrier(dist.barrier)
    dist.new_group = _new_group(dist.new_group)
    dist.broadcast = _finished(dist.broadcast)


def _new_group(make):
    """A process group of gloo, whatever backend is requested; without options that gloo or this PyTorch does not know."""
    @functools.wraps(make)
    def call(ranks=None, timeout=None, **_):
        return make(ranks, **({} if timeout is None else {"timeout": timeout}))
    return call


def _finished(collective):
    """Waits for the work at once, so that handles are of one kind."""
    @functools.wraps(collective)
    def call(*positional, **named):
        wanted = named.pop("async_op", False)
        collective(*positional, **named)
        return Done() if wanted else None
    return call


def _all_reduce(reduce):
    @functools.wraps(reduce)
    def call(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        mean = op == getattr(dist.ReduceOp, "AVG", None)
        work = tensor.float() if tensor.dtype in _SMALL else tensor.contiguous()
        reduce(work, op=dist.ReduceOp.SUM if mean else op, group=group)
        if mean:
            work /= dist.get_world_size(group)
        if work is not tensor:
            tensor.copy_(work)
        return Done() if async_op else None
    return call


def _all_gather(gather):
    """Gathers bytes if gloo does not know the type, or sizes differ; then each rank's have the length of the longest."""
    @functools.wraps(gather)
    def call(tensors, tensor, group=None, async_op=False):
        sizes = [each.numel() * each.element_size() for each in tensors]
        if not any(sizes):
            return Done() if async_op else None
        if len(set(sizes)) > 1 or tensor.dtype in (*_SMALL, torch.bool):
            parts = [torch.empty(max(sizes), dtype=torch.uint8) for _ in sizes]
            mine = torch.zeros(max(sizes), dtype=torch.uint8)
            if tensor.numel():
                mine[:tensor.numel() * tensor.element_size()] = tensor.contiguous().view(-1).view(torch.uint8)
            gather(parts, mine, group=group)
            for each, part, size in zip(tensors, parts, sizes):
                if size:
                    each.copy_(part[:size].view(each.dtype).view(each.shape))
        else:
            gather(tensors, tensor.contiguous(), group=group)
        return Done() if async_op else None
    return call


def _barrier(barrier):
    @functools.wraps(barrier)
    def call(group=None, async_op=False, device_ids=None):
        barrier(group=group)
        return Done() if async_op else None
    return call


def _all_to_all(outputs, inputs, group=None, async_op=False):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    work = []
    ranks = [dist.get_global_rank(group, each) if group is not None and group is not dist.group.WORLD else each
             for each in range(size)]
    outputs[rank].copy_(inputs[rank])
    landing = {}
    for other in range(size):
        if other == rank:
            continue
        if inputs[other].numel():
            work.append(dist.isend(inputs[other].contiguous(), ranks[other], group=group))
        if outputs[other].numel():
            landing[other] = torch.empty_like(outputs[other], memory_format=torch.contiguous_format)
            work.append(dist.irecv(landing[other], ranks[other], group=group))
    for each in work:
        each.wait()
    for other, tensor in landing.items():
        outputs[other].copy_(tensor)
    return Done() if async_op else None


def _all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
    size = dist.get_world_size(group)

    def parts(tensor, sizes):
        if sizes is None:
            sizes = [tensor.shape[0] // size] * size
        return list(tensor.split([int(each) for each in sizes]))
    return _all_to_all(parts(output, output_split_sizes), parts(input, input_split_sizes), group, async_op)
