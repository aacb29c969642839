"""The command `broadsheet`, also as `python -m broadsheet`."""

from .pipeline.cli import look_less_for_garbage
from .pipeline.cli import process as main

look_less_for_garbage()  # here, since a worker process imports the command's module before all others

if __name__ == "__main__":
    main()
