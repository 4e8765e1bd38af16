"""Turning running code into a trace: the only part of ampcheck that watches tensors.

Reading order: `measure` (a tensor's statistics), `source` and `modules` (where are we), `recorder` (what
each operation did), `collect` (the trace); `policy`, `emulation` and `wide` are CUDA's casting rules on a CPU.
"""
