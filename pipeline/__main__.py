"""`python -m pipeline` is the command `broadsheet`."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
