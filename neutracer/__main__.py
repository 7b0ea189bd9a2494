# SPDX-License-Identifier: Apache-2.0
"""`python -m neutracer`."""

import sys

from neutracer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
