"""Turning running code into a trace: the only part of ampcheck that watches tensors.

Reading order: `statistics` (what a tensor's values are), `source` and `model` (where are we), `recorder` (what each
operation did), `step` (one step of it); `reference` is the FP32 run, `cuda_on_cpu` has CUDA's casting rules on a CPU,
`fp8` emulates recipes, and `script` watches a training script that knows nothing of it.
"""
