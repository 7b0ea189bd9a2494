# SPDX-License-Identifier: Apache-2.0
"""Plots of a snapshot: `timeline`, `segments`."""
