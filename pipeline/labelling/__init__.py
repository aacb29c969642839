"""Passes texts through all models of a job, with cached engines, windows, and care for rows on which a model overflows."""
