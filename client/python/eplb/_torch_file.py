"""Reads files of torch.save as plain data, without torch and without running anything that they contain.

A pickle may name any function to be called. Here it may name the few that make tensors, lists and dictionaries, and
anything else ends the reading; that holds for every version of torch, also those whose weights_only was fooled.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import sys
import zipfile
from collections import OrderedDict
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

_MAX_PICKLE_BYTES = 1 << 26
# Opcodes that number an object. The unpickler makes room for all lower numbers.
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")

# bfloat16 has no type in numpy: its bits are the upper half of a float32.
_BFLOAT16 = "bfloat16"
_DTYPES = {"DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "BFloat16Storage": _BFLOAT16,
           "LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1",
           "BoolStorage": "?"}


class BadFile(ValueError):
    """The file is not what torch.save writes of plain data; the message is one line, without the file's name."""


class _StorageType:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


def read_torch_file(path: str) -> Any:
    """The object in a file of torch.save, its tensors as numpy arrays, bfloat16 as float32.

    errors: BadFile; OSError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Archive(archive, os.path.getsize(path)).read()
    except zipfile.BadZipFile:
        with open(path, "rb") as file:
            start = file.read(2)
        if start[:1] == b"\x80":
            raise BadFile("is a pickle, or of a torch.save before 1.6, which is not read; save it again with a torch of "
                          "today") from None
        raise BadFile("is not a file of torch.save: it is no zip archive") from None


class _Archive:
    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._sizes = {info.filename: info.file_size for info in archive.infolist()}
        unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > size:
            raise BadFile(f"unpacks to {unpacked} bytes from a file of {size}, which torch.save does not write: it never compresses")
        pickles = [name for name in self._sizes if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise BadFile(f"is not a file of torch.save: its archive has {len(pickles)} members data.pkl, expected 1")
        self._prefix = pickles[0][:-len("data.pkl")]
        self._storages: Dict[str, np.ndarray] = {}

    def read(self) -> Any:
        name = self._prefix + "data.pkl"
        if self._sizes[name] > _MAX_PICKLE_BYTES:
            raise BadFile(f"has a data.pkl of {self._sizes[name]} bytes, at most {_MAX_PICKLE_BYTES} are read")
        order = self._prefix + "byteorder"
        if order in self._sizes and self._archive.read(order) != sys.byteorder.encode():
            raise BadFile(f"was written with another order of bytes than this machine's, {sys.byteorder}-endian")
        try:
            data = self._archive.read(name)
            _check_numbers(data)
            return _Unpickler(io.BytesIO(data), self._storage).load()
        except BadFile:
            raise
        except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, ValueError, TypeError, KeyError, IndexError,
                AttributeError, OverflowError, MemoryError, RecursionError, ImportError) as error:
            raise BadFile(f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from None

    def _storage(self, identity: Any) -> np.ndarray:
        """The elements of a storage. identity: ("storage", type, key, device, number of elements)."""
        if not (isinstance(identity, tuple) and len(identity) == 5 and identity[0] == "storage"
                and isinstance(identity[1], _StorageType) and isinstance(identity[2], str)):
            raise BadFile("has a reference that is no storage of a tensor")
        key = identity[2]
        if key not in self._storages:
            name = f"{self._prefix}data/{key}"
            if name not in self._sizes:
                raise BadFile(f"has no member data/{key}, which a tensor refers to")
            bits = identity[1].dtype == _BFLOAT16
            elements = np.frombuffer(self._archive.read(name), dtype="u2" if bits else identity[1].dtype)
            self._storages[key] = (elements.astype("u4") << 16).view("f4") if bits else elements
        return self._storages[key]


def _check_numbers(data: bytes) -> None:
    """errors: BadFile for a pickle whose objects have higher numbers than it can have objects: it would fill the memory."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _PUTS and int(argument) > len(data):
            raise BadFile(f"has a pickle of {len(data)} bytes that numbers an object {argument}")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storage: Callable[[Any], np.ndarray]) -> None:
        super().__init__(file)
        self._storage = storage

    def persistent_load(self, pid: Any) -> np.ndarray:
        return self._storage(pid)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor")):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _rebuild_parameter
        if (module, name) == ("torch", "Size"):
            return tuple
        if module in ("torch", "torch.storage") and name in _DTYPES:
            return _StorageType(_DTYPES[name])
        raise BadFile(f"wants {module}.{name} to be called, which is refused: only tensors, lists, dictionaries, text and "
                      f"numbers are read")


def _rebuild_tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> np.ndarray:
    if not isinstance(storage, np.ndarray):
        raise BadFile("has a tensor without a storage")
    if len(size) != len(stride) or offset < 0 or any(each < 0 for each in (*size, *stride)):
        raise BadFile(f"has a tensor of size {list(size)} with stride {list(stride)} at {offset}")
    last = offset + sum((count - 1) * step for count, step in zip(size, stride))
    if 0 not in size and last >= storage.size:
        raise BadFile(f"has a tensor that reaches to element {last} of a storage of {storage.size}")
    elements = math.prod(size)
    if elements > storage.size:  # a small file must not fill the memory with copies of one element
        raise BadFile(f"has a tensor of {elements} elements over a storage of {storage.size}")
    if elements == 0:
        return np.empty(tuple(size), storage.dtype)
    steps: Tuple[int, ...] = tuple(each * storage.itemsize for each in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], tuple(size), steps, writeable=False)


def _rebuild_parameter(data: np.ndarray, requires_grad: Optional[bool] = None, hooks: Any = None) -> np.ndarray:
    return data
