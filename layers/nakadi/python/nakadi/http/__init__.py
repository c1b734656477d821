"""HTTP: the broker's request and response types, the routes, the Problems, and the edges, which connect the application
to ASGI and to API Gateway.
"""
