"""Passes texts through all models of a job: caches engines, cuts windows, and handles rows that overflow a model."""
