# SPDX-License-Identifier: Apache-2.0
"""One rank of a job in a few kilobytes, and how ranks tell each other theirs."""
