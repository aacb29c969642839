"""From a name to a stream of bytes: decompression, encodings, reading ahead."""
