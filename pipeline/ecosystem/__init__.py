"""Connections to other tools of the field: Dask collections, ONNX, the Hugging Face Hub."""
