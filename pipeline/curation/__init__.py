"""From a model to better labels: why it says what it says, which rows to label next, and decisions on rows."""
