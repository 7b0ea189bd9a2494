# SPDX-License-Identifier: Apache-2.0
"""One page on all of it: `report` of a snapshot, `run_report` of a program."""
