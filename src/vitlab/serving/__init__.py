"""The HTTP service: limits, decoding, dynamic batching, the routes and the server that listens."""
