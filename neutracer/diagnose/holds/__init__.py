# SPDX-License-Identifier: Apache-2.0
"""What holds on to tensors: `cycles`, `autograd_cycles`, `alive`, `holders`."""
