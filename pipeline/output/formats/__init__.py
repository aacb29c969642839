"""The file formats of parts, one file each."""
