"""Servers side by side: Broadsheet's, LitServe and Triton, in open loop, and under wrk."""
