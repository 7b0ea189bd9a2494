# SPDX-License-Identifier: Apache-2.0
"""A plain document, and how it is shown: as text, HTML and JSON. Escaping lives here."""
