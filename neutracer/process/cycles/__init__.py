# SPDX-License-Identifier: Apache-2.0
"""Reference cycles as the collector finds them: `watch`, `pressure`."""
