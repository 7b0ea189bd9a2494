# SPDX-License-Identifier: Apache-2.0
"""Pictures: plots, and the offline page of a snapshot."""
