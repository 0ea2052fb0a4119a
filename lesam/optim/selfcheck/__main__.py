"""``python -m lesam.optim.selfcheck``."""

from . import main

if __name__ == "__main__":
    raise SystemExit(main())
