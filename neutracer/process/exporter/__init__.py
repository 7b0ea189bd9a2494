# SPDX-License-Identifier: Apache-2.0
"""A monitor's figures for Prometheus and `neutracer top`: `serve`."""
