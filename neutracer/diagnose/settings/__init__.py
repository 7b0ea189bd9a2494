# SPDX-License-Identifier: Apache-2.0
"""What other allocator settings would do: `what_if`."""
