"""What other tools of the field take and give: Dask collections, ONNX, the Hugging Face Hub."""
