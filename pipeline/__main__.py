"""The command `broadsheet` of a checkout, as `python -m pipeline`."""

from .cli import look_less_for_garbage, main

look_less_for_garbage()  # here, since a worker process imports the command's module before all others

if __name__ == "__main__":
    main()
