# SPDX-License-Identifier: Apache-2.0
"""The questions: one a file, each returns one report."""
