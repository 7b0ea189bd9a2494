# SPDX-License-Identifier: Apache-2.0
"""One page on everything: `report` of a snapshot, `run_report` of a program."""
