# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job as a picture: rank x time."""
