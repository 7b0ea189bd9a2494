# SPDX-License-Identifier: Apache-2.0
"""The devices and who holds them: `devices`, `attribution`."""
