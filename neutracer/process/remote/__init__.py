# SPDX-License-Identifier: Apache-2.0
"""Another process of this machine: `ask` it to do something."""
