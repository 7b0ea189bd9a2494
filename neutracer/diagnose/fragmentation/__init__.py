# SPDX-License-Identifier: Apache-2.0
"""Whether memory is fragmented: `report`."""
