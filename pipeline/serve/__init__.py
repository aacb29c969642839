"""Labels on request: an HTTP server that batches the texts of many requests, and holds a latency target."""
