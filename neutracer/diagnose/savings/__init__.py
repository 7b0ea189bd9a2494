# SPDX-License-Identifier: Apache-2.0
"""What changes of a program would save."""
