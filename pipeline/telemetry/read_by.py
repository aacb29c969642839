"""Names the counts of records by who has read them, a GPU or the host, for jobs whose GPU has read some."""

BY_GPU = "gpu"
ODD, MANY_ODD, UNCLEAR, NO_MEMORY = "odd", "many_odd", "unclear", "no_memory"
OUTSIDE_BLOCKS, OTHER_RANGES = "outside_blocks", "other_ranges"

BY_HOST = {
    ODD: "of which the GPU could not be sure",
    MANY_ODD: "from a block on with many of that kind",
    UNCLEAR: "from a block on in which the GPU could not be sure where records end",
    NO_MEMORY: "from a block on for which the GPU had no memory",
    OUTSIDE_BLOCKS: "from a line on that is longer than a block, or has no line end",
    OTHER_RANGES: "in files that only the host reads",
}
"""The reasons why the host has read records, by key, as they follow the number of records in a sentence.

"From … on" means up to the end of a file, or of the part of a file that a task reads.
"""
