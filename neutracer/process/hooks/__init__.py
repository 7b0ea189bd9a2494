# SPDX-License-Identifier: Apache-2.0
"""The hooks on PyTorch's allocators: `attach`, and `tail` for what they saw."""
