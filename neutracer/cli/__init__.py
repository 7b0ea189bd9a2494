# SPDX-License-Identifier: Apache-2.0
"""The command line: `main` parses, and imports the module of the command."""
