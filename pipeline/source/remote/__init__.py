"""Files that are not on a disk: objects in buckets, files on servers of the web, and what fsspec has drivers for."""
