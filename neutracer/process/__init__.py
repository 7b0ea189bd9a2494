# SPDX-License-Identifier: Apache-2.0
"""This process, while it runs."""
