# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job compared: who is odd and why, who ran out of memory first."""
