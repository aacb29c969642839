"""Servers side by side: Broadsheet's, LitServe, Ray Serve and BentoML, under k6 in open loop."""
