# SPDX-License-Identifier: Apache-2.0
"""What was measured on cards, a file each."""
