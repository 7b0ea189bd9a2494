# SPDX-License-Identifier: Apache-2.0
"""The nouns of a trace: snapshot, timeline, layout, table."""
