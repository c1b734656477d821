"""A service that gets OpenLineage events."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class LineageService:
    """An OpenLineage service that keeps each event with its path and its key, and answers with `status`."""

    def __init__(self, status=201):
        self.events, self.keys = [], []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                service.events.append((self.path, json.loads(body)))
                service.keys.append(self.headers.get("authorization"))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
