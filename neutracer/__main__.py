# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer`, and `python -m neutracer`."""

import os
import sys


def main() -> int:
    """Run the command line; Ctrl-C during its imports ends it without a traceback."""
    try:
        from neutracer.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    # Python has put the current folder first, where a script may be called as a module that is
    # imported from here on; the command `neutracer` does without it, and what it runs brings
    # its own.
    if not getattr(sys.flags, "safe_path", False) and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    sys.exit(main())
