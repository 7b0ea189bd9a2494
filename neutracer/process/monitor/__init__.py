# SPDX-License-Identifier: Apache-2.0
"""Memory read at a steady pace: `memory_monitor`."""
