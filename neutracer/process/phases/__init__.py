# SPDX-License-Identifier: Apache-2.0
"""What a program is doing: its phases, their peaks, and its own words for where it is."""
