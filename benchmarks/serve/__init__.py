"""Compares servers: Broadsheet's, LitServe and Triton, with requests at a given rate, and with wrk."""
