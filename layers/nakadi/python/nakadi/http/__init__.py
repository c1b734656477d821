"""HTTP: the broker's request and response types, the routes, the Problems, and the edges to ASGI and API Gateway."""
