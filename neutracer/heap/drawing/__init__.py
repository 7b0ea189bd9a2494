# SPDX-License-Identifier: Apache-2.0
"""An object graph drawn: `draw`."""
