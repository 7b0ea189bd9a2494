# SPDX-License-Identifier: Apache-2.0
"""Why memory ran out: `explain` a snapshot, `watch` a program."""
