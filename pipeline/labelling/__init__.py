"""Texts through all models of a job: engines held, windows, rows on which a model overflows."""
