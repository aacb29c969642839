"""The formats, one file each; `registry` chooses one by the suffix of a file."""
