"""``python -m mlt``: the ``mlt`` command of this interpreter."""

from mlt.cli.main import main

if __name__ == "__main__":
    main()
