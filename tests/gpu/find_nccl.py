#!/usr/bin/env python3
"""Prints the path of a libnccl.so.2 that Python packages or conda brought, or nothing.

The library itself looks at what the process has loaded, EPLB_NCCL_PATH, the loader's path, PYTHONPATH and VIRTUAL_ENV.
PyTorch's wheel lies in site-packages/nvidia/nccl/lib of whichever Python it was installed for, which is often the system's or
conda's.
"""
import glob
import importlib.util
import os
import re
import sys

NAME = "libnccl.so.2"
# For another Python than the one that runs this.
PYTHON_ROOTS = ("/usr/lib", "/usr/local/lib", "/opt/conda/lib", os.path.expanduser("~/.local/lib"))


def wheel_folders():
    """Folders of this Python's nvidia.nccl, a namespace package that may have several."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def minor_version(path):
    """12 for python3.12, 0 for Debian's folder without one."""
    return int(re.findall(r"/python3\.?(\d*)", path)[-1] or 0)


def candidates(roots=PYTHON_ROOTS):
    for folder in wheel_folders():
        yield os.path.join(folder, "lib", NAME)
    conda = os.environ.get("CONDA_PREFIX")
    for root in ([os.path.join(conda, "lib")] if conda else []) + list(roots):
        for packages in ("site-packages", "dist-packages"):
            yield from sorted(glob.glob(os.path.join(root, "python3*", packages, "nvidia", "nccl", "lib", NAME)),
                              key=minor_version, reverse=True)
    if conda:
        yield os.path.join(conda, "lib", NAME)


def main():
    found = next((path for path in candidates() if os.path.isfile(path)), None)
    if found:
        print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
