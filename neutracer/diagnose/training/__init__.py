# SPDX-License-Identifier: Apache-2.0
"""A training run that is watched: its steps, phases, growth and out-of-memory errors."""
