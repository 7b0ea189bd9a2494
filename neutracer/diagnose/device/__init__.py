# SPDX-License-Identifier: Apache-2.0
"""What holds a device's memory: `report`."""
