# SPDX-License-Identifier: Apache-2.0
"""What PyTorch records of its allocator: `capture`, `recorder`."""
