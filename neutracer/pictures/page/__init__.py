# SPDX-License-Identifier: Apache-2.0
"""A snapshot as one offline page: `view`."""
