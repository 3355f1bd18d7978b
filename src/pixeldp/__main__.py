"""``python -m pixeldp`` is ``pixeldp``."""

from pixeldp.cli import main

if __name__ == "__main__":
    main()
