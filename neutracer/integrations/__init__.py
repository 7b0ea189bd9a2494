# SPDX-License-Identifier: Apache-2.0
"""What others load: pytest, trainers and trackers. Nothing here is imported by neutracer."""
