# SPDX-License-Identifier: Apache-2.0
"""A recording of a run that has not happened."""
