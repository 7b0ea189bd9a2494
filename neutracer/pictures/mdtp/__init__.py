# SPDX-License-Identifier: Apache-2.0
"""Memory over time, each block at its address: `picture`."""
