"""``python -m lesam`` is the command line, as is ``torchrun ... -m lesam``; it lives in :mod:`lesam.lab`."""

import sys

from lesam.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
