"""HTTP: our own request and response, the routes, the Problems, and the edges to ASGI and API Gateway."""
