# SPDX-License-Identifier: Apache-2.0
"""What others load: pytest, trainers and trackers. Nothing here is imported by neutracer."""

#: The markers: their names, and what pytest lists of them.
MARKERS = {
    "limit_gpu_memory": (
        "limit_gpu_memory(limit, rehearse=False, device='NVIDIA H200'): the most bytes ('1.5 GB') "
        "that the test may allocate on a CUDA device above what was there at its start; without a "
        "device it is skipped, or with rehearse=True run on fake tensors, as if on that card"
    ),
    "limit_gpu_leaks": (
        "limit_gpu_leaks(limit): the most bytes ('0 B') that may be left of what the test "
        "allocated when its fixtures are gone"
    ),
    "limit_gpu_fragmentation": (
        "limit_gpu_fragmentation(ratio): the largest share (0.3) of the reserved bytes that may "
        "be unused at the test's peak"
    ),
    "no_tensor_cycles": (
        "no_tensor_cycles(device='all', min_bytes=0): the test must leave no tensor in reference "
        "cycles, on the CPU neither"
    ),
}
