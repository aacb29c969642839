"""The output folder: the names in it, the commit of a chunk, what a job was, and rereading it all."""
