"""EPLB in trainers of PyTorch: per-expert parameters and state as rows, routers in slot order, groups as ranks.

It needs torch, which the rest of the package does without; `eplb.torch` is loaded when it is asked for.
"""
