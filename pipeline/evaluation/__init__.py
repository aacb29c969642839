"""A model and labelled rows: how good its labels are, and what is fitted to them."""
