# SPDX-License-Identifier: Apache-2.0
"""Whether memory leaks: `trend`, and `diff` of two snapshots."""
