# SPDX-License-Identifier: Apache-2.0
"""What is looked at: plots, and the offline page of a snapshot."""
