"""A shared CUDA runtime in a process with libeplb.so, which has one of its own inside, as with PyTorch.

Needs EPLB_CUDART, the shared runtime. Without a GPU both runtimes answer with errors; what they do on one is seen by
tests/gpu/torch_step.py.
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PATIENCE = float(os.environ.get("EPLB_TEST_PATIENCE", "1"))
NO_DRIVER = ("cudaErrorInsufficientDriver", "cudaErrorNoDevice")


class Runtime:
    """The shared one, loaded so that the whole process sees it."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ["EPLB_CUDART"], mode=ctypes.RTLD_GLOBAL)
        self.library.cudaGetErrorName.restype = ctypes.c_char_p

    def devices(self):
        """How many, or the name of the error."""
        count = ctypes.c_int(-1)
        code = self.library.cudaGetDeviceCount(ctypes.byref(count))
        return count.value if code == 0 else self.library.cudaGetErrorName(code).decode()

    def version(self):
        version = ctypes.c_int(-1)
        assert self.library.cudaRuntimeGetVersion(ctypes.byref(version)) == 0
        return version.value


def run_rank(order, directory):
    """One rank with experts in host memory, between two questions to the shared runtime."""
    runtime = Runtime() if order == "before" else None
    before = runtime and runtime.devices()
    import numpy as np
    import ranks
    with ranks.connect(pathlib.Path(directory), 0, 1) as client:
        runtime = runtime or Runtime()
        for layer in range(2):
            rows = np.zeros((client.placement.num_local_slots, 64), dtype=np.float32)
            client.register(rows, name=f"layers.{layer}", layer=layer)
        client.finish_registration()
        print(f"transport {client.transport}")
    after = runtime.devices()
    assert before in (None, after), (before, after)
    assert runtime.version() >= 12000, runtime.version()
    print(f"devices {after}")


class SharedRuntimeTest(unittest.TestCase):
    def run_order(self, order):
        """returns: what the rank printed, and each symbol that the loader bound: (from, to, symbol)."""
        with tempfile.TemporaryDirectory(prefix="eplb-runtimes-") as directory:
            log = pathlib.Path(directory, "loader")
            environment = {**os.environ, "LD_DEBUG": "bindings", "LD_BIND_NOW": "1", "LD_DEBUG_OUTPUT": str(log)}
            rank = subprocess.run([sys.executable, "-B", __file__, "--rank", order, directory], capture_output=True, text=True,
                                  timeout=60 * PATIENCE, env=environment)
            self.assertEqual(rank.returncode, 0, rank.stderr)
            lines = [line for path in pathlib.Path(directory).glob("loader.*") for line in path.open(errors="replace")]
        pattern = re.compile(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: \w+ symbol `(\w+)'")
        return rank.stdout, [found.groups() for found in map(pattern.search, lines) if found]

    def check(self, order):
        said, bound = self.run_order(order)
        self.assertIn("transport host", said)
        devices = re.search(r"devices (\S+)", said).group(1)
        self.assertTrue(devices.isdigit() or devices in NO_DRIVER, devices)
        files = {file for file, _, _ in bound}
        self.assertTrue(any("libeplb" in file for file in files), files)
        self.assertTrue(any("libcudart" in file for file in files), files)
        crossed = [line for line in bound if {True} == {any(name in file for file in line[:2]) for name in ("libeplb", "libcudart")}]
        self.assertEqual(crossed, [], "a function of one runtime is called by what belongs to the other")

    def test_the_shared_one_is_loaded_first(self):
        self.check("before")

    def test_libeplb_is_loaded_first(self):
        self.check("after")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(*sys.argv[2:])
    else:
        unittest.main()
