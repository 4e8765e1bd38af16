"""What the cost report says around its tables."""

INTRODUCTION = """
Made by `python tests/benchmarks/bench_recorder.py --report reports/cost.md`.

{machine}; one thread; {rounds} rounds. Ratios are medians [quartiles] of ratios within a round. A round
runs a bare step, a second bare step and a recorded one, in random order and in one process; "bare / bare"
is what the machine and the method add by themselves, so nothing smaller than its quartiles is resolved.
Times are of the processor, because the machine was shared.
"""
TIME = """
Every operation of forward and backward is recorded: the exact exponent histogram of each floating-point
result with zeros, infinities, NaNs, largest magnitude and sum of squares, module inputs and outputs, casts,
and the user's line. A step is forward, loss and backward. *resnet18*: 8x3x128x128, FP32. *decoder*: a GPT
of 6 layers, width 384, 4x256 tokens, vocabulary 8192, bfloat16 parameters. *lstm*: an LSTM cell written as
modules over 32 steps and 20 tiny layers, where a step is nearly all overhead of single operations. The rows
"by CUDA's rules" run FP32 parameters under ampcheck's emulation of CUDA's autocast in fp16; both arms pay
for the emulation, so the ratio is of recording alone. The goal for the decoder is 1.6. "With samples and
fetch" is what an audit does: it also keeps 128 elements of each result for comparison, and brings the
record to the host, once.
"""
PEERS = """
Peers on the same three steps, measured earlier on a CPU-only machine with two virtual cores, torch 2.13,
processor time, one thread, and a process of its own for each tool, which resolves about 15 %. Most
record less: module outputs only, or forward only, and no histograms.

| tool | resnet18, FP32 | decoder, bf16 | lstm, FP32 |
|---|---:|---:|---:|
| Hugging Face DebugUnderflowOverflow (forward only) | 2.06 | 2.15 | 4.5 |
| msprobe statistics, L0 / L1 / mix | 2.00 / 2.87 / 3.25 | 2.13 / - / - | 45 / 47 / 110 |
| nvdlfw-inspect LogTensorStats | 1.71 | - | 19 |
| unit-scaling track_scales | 1.73 | - | 10 |
| gradients and parameters as wandb.watch takes them (own emulation) | 1.53 | - | 2.0 |
| tensorboard add_histogram, gradients and parameters | 1.47 | - | 14 |
| five statistics with `.item()` on each module output | 2.24 | 3.24 | 9.1 |
| torch DebugMode (operations, no statistics) | 1.18 | - | 14 |
| torch flop_counter (operations, no statistics) | 1.11 | - | 12 |
| TorchDispatchMode that does nothing | 1.14 | 1.16 | 2.7 |
| a compiled histogram on each operation, first try | 1.20 | 1.58 | 4.6 |
"""
READS = """
Calls that read numbers out of a tensor (`item`, `tolist`, `cpu`, `numpy`, `bool`, ...), counted by Python's
and torch's profilers, less those of the bare step. On an accelerator each would wait for the device. With
CUDA the recorded step runs with `torch.cuda.set_sync_debug_mode("error")` besides.
"""
MEMORY = """
Left: the most tensor memory held at once above the start, from the allocator's own events
(`torch.profiler`), fetch included; at most 10 % of the step's is asked for. The *lstm* step itself holds
half a MiB in thousands of tiny tensors: there the records, 2 KiB a tensor until 1024 of them are added up
by site, are many times that, and they stay a few MiB however long the step is. Right: growth of resident
memory over one step (`VmHWM` after a reset) in a process of its own, MiB; the second bare column shows its
noise.
"""
SIZE = "The same model at two batch sizes: the tensors grow, the report does not."
STARTUP = """
The smallest of several runs, with bare Python's own time taken off the first three. Nothing of torch, rich or
pandas is loaded by the first two: `tests/cli/test_startup.py` asserts it. The audit builds the model, runs it in
FP32 and fp16, tries its claims by running it again, and says the verdict. It is timed with torch's two threads
and with one. The command line asks torch's threads to
wait passively: before it did, threads that spun while they waited for each other made the same audit take 40 to
70 s while other programs held a core.
"""
PLUG_IN = """
Made by `python tests/benchmarks/bench_recorder.py --report reports/cost.md --only-plug-in`, which leaves the rest
as it is. A pytest run that collects nothing, with the plug-in and with `-p no:ampcheck`, turn about in every round,
each in a process of its own; the smallest of all rounds counts. It loads neither torch nor pandas nor rich:
`tests/pytest_plugin/test_pytest_plugin.py` asserts it.
"""
