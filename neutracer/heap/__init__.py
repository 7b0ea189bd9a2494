# SPDX-License-Identifier: Apache-2.0
"""Python's own objects: the graph of who refers to whom, and its pictures."""
