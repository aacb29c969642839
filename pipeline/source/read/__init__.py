"""Reading: records, chunks, reader processes."""
