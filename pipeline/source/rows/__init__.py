"""Rows as the steps hand them on, and what all steps share."""
