"""``python -m zstate``: the same as the ``zstate`` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
