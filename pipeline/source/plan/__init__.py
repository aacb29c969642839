"""What is in the files, and where chunks begin."""
