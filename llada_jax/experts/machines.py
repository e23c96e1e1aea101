"""Machines as their published numbers have them; each number says where it is from.

A derived number is arithmetic on measured ones; an inferred number nobody has published.
"""

from llada_jax.experts.costs import Figure, MachineProfile

DESKTOP = MachineProfile(
    name="desktop",
    bytes_per_weight=Figure(0.5, "measured", "4-bit Marlin, arXiv 2504.05897"),
    expert_weights=Figure(1200, "inferred", "600 of the A6000's 768 GB/s"),
    dense_weights=Figure(1200, "inferred", "as experts"),
    accelerator_call=Figure(150, "inferred", "three kernels launched from PyTorch"),
    cpu_bandwidth=Figure(10.1, "fitted", "kTransformers, Qwen2 at 25 %: 0.21 s a decoded token"),
    cpu_rate=Figure(1408, "inferred", "10 cores, 2.2 GHz, 64 8-bit multiply-adds a cycle"),
    cpu_first=Figure(300, "inferred", "cold caches: a quarter of an expert"),
    transfer_bandwidth=Figure(
        10.4, "derived", "0.4179 ms for an expert of DeepSeek, HybriMoE's code"
    ),
    layer_overhead=Figure(300, "inferred", "attention and launches of a layer"),
)
"""RTX A6000, ten cores of a Xeon Gold 5220R, PCIe (arXiv 2504.05897).

The fitted number is that of the baseline, before anything of the paper's is added. The prompt of
its prefill is taken to have 32 tokens, the shortest of the paper: with more, reading the experts
from the CPU's memory would take longer than the baseline's 1.47 s.
"""

_Q4 = Figure(18 / 32, "measured", "Q4_0: 18 bytes for 32 weights")
_CALL = Figure(10, "inferred", "an expert is three operations within one call")
_LAYER = Figure(
    700,
    "derived",
    "attention of 64 rows 0.55 ms and norms 0.05 ms a layer of Llama-3.2-3B, call 0.09 ms",
)
_FIRST = Figure(90, "measured", "a polled call to the NPU; here the CPU's threads are woken")

SM8750 = MachineProfile(
    name="SM8750",
    bytes_per_weight=_Q4,
    expert_weights=Figure(
        19.9, "derived", "351 ms for each tile of 32 rows, arXiv 2606.13740, table 2"
    ),
    dense_weights=Figure(19.9, "derived", "as experts"),
    accelerator_call=_CALL,
    cpu_bandwidth=Figure(
        5.3, "derived", "736 ms a step beside the rows, arXiv 2606.13740, table 2"
    ),
    cpu_rate=Figure(63.7, "derived", "109.5 ms a row, arXiv 2606.13740, table 2"),
    cpu_first=_FIRST,
    transfer_bandwidth=Figure(2.1, "derived", "staging budgets, arXiv 2606.13740, figure 13c"),
    layer_overhead=_LAYER,
)
"""Snapdragon 8 Elite with the kernels of llada.cpp, on NPU and CPU."""

SM8850 = MachineProfile(
    name="SM8850",
    bytes_per_weight=_Q4,
    expert_weights=Figure(29.3, "inferred", "SM8750 times 16.8 / 11.4, as Genie at 128 rows"),
    dense_weights=Figure(29.3, "inferred", "as experts"),
    accelerator_call=_CALL,
    cpu_bandwidth=Figure(5.7, "inferred", "SM8750 times 52 / 48, the CPU's share of the memory"),
    cpu_rate=Figure(79.6, "inferred", "SM8750 times 1.25"),
    cpu_first=_FIRST,
    transfer_bandwidth=Figure(
        2.4, "inferred", "SM8750 times 60 / 52, the NPU's share of the memory"
    ),
    layer_overhead=_LAYER,
)
"""Snapdragon 8 Elite Gen 5; llada.cpp was not measured on it."""

SM8750_TUNED = MachineProfile(
    name="SM8750_tuned",
    bytes_per_weight=_Q4,
    expert_weights=Figure(
        24.5,
        "derived",
        "nntrainer, 52_flash_experts_on_htp_task.md: LFM2-8B-A1B, 32 experts in 14.4 ms",
    ),
    dense_weights=Figure(60, "derived", "W4A8 kernels, Llama-3.2-3B, 64 rows"),
    accelerator_call=_CALL,
    cpu_bandwidth=Figure(48, "inferred", "read bandwidth of the CPU"),
    cpu_rate=Figure(
        271, "derived", "nntrainer, the same: 444 tokens of 1.5 billion weights in 2.46 s"
    ),
    cpu_first=_FIRST,
    transfer_bandwidth=Figure(
        4.4, "measured", "nntrainer, the same: one thread copies; eight do 14"
    ),
    layer_overhead=_LAYER,
)
"""The best published kernels for this phone: its CPU is then as fast as its NPU at small loads."""

SM8850_TUNED = MachineProfile(
    name="SM8850_tuned",
    bytes_per_weight=_Q4,
    expert_weights=Figure(36.1, "inferred", "SM8750 times 16.8 / 11.4, as Genie at 128 rows"),
    dense_weights=Figure(88, "inferred", "SM8750 times 16.8 / 11.4"),
    accelerator_call=_CALL,
    cpu_bandwidth=Figure(52, "inferred", "read bandwidth of the CPU"),
    cpu_rate=Figure(339, "inferred", "SM8750 times 1.25"),
    cpu_first=_FIRST,
    transfer_bandwidth=Figure(5.1, "inferred", "SM8750 times 60 / 52"),
    layer_overhead=_LAYER,
)

PHONES = {machine.name: machine for machine in (SM8750, SM8850, SM8750_TUNED, SM8850_TUNED)}
