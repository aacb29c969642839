"""The command `broadsheet`, also as `python -m broadsheet`."""

from .pipeline.__main__ import main

if __name__ == "__main__":
    main()
