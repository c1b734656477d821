"""An Iceberg REST catalog on this machine. This module serves HTTP, and Iceberg's own handlers answer for a catalog in
a folder; Spark's Java process has them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

REST = "org.apache.iceberg.rest"
STATUS = {
    "NoSuchNamespaceException": 404,
    "NoSuchTableException": 404,
    "AlreadyExistsException": 409,
    "CommitFailedException": 409,
}
TABLES = re.compile(r"/v1/namespaces/([^/]+)/tables(?:/([^/]+))?(/metrics)?")


class Catalog:
    """Answers requests of Iceberg's REST catalog protocol. `asked` has the methods and paths of all requests."""

    def __init__(self, spark: SparkSession, warehouse: Path, token: str) -> None:
        self.token = token
        self.asked: list[tuple[str, str]] = []
        gateway, self._jvm = spark.sparkContext._gateway, spark._jvm
        self._botocore_loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        configuration = spark._jsc.hadoopConfiguration()
        self._catalog = self._jvm.org.apache.iceberg.hadoop.HadoopCatalog(configuration, warehouse.as_uri())
        self._handlers = self._jvm.org.apache.iceberg.rest.CatalogHandlers
        nothing = gateway.new_array(self._jvm.java.lang.Class, 0)
        made = self._botocore_loader.loadClass(f"{REST}.RESTObjectMapper").getDeclaredMethod("mapper", nothing)
        made.setAccessible(True)
        self._mapper = made.invoke(None, gateway.new_array(self._jvm.java.lang.Object, 0))

    def answer(self, method: str, url: str, body: str) -> tuple[int, str]:
        parts = urlsplit(url)
        self.asked.append((method, parts.path))
        try:
            found = self._call(method, parts.path, parse_qs(parts.query), body)
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            status = STATUS.get(kind, 500)
            problem = {"message": error.java_exception.getMessage() or "", "type": kind, "code": status}
            return status, json.dumps({"error": problem})
        if found is None:
            return 204, ""
        return 200, found if isinstance(found, str) else self._mapper.writeValueAsString(found)

    def _call(self, method: str, path: str, query: dict[str, list[str]], body: str) -> Any:
        if path == "/v1/config":
            return json.dumps({"defaults": {}, "overrides": {}})
        if path == "/v1/namespaces":
            assert method == "POST"
            # A catalog in a folder cannot store properties of namespaces.
            wanted = json.dumps({"namespace": json.loads(body)["namespace"], "properties": {}})
            return self._handlers.createNamespace(self._catalog, self._read("requests.CreateNamespaceRequest", wanted))
        found = TABLES.fullmatch(path)
        if found is None:
            return self._handlers.loadNamespace(self._catalog, self._namespace(path.rpartition("/")[2]))
        namespace, table, metrics = found.groups()
        if metrics:
            return None
        return self._of_tables(method, namespace, table, body, purge=query.get("purgeRequested") == ["true"])

    def _of_tables(self, method: str, namespace: str, table: str | None, body: str, *, purge: bool) -> Any:
        handlers, catalog = self._handlers, self._catalog
        if table is None and method == "GET":
            return handlers.listTables(catalog, self._namespace(namespace))
        if table is None:
            wanted = self._read("requests.CreateTableRequest", body)
            create = handlers.stageTableCreate if wanted.stageCreate() else handlers.createTable
            return create(catalog, self._namespace(namespace), wanted)
        name = self._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(f"{namespace}.{table}")
        match method:
            case "GET":
                return handlers.loadTable(catalog, name)
            case "POST":
                return handlers.updateTable(catalog, name, self._read("requests.UpdateTableRequest", body))
            case "DELETE":
                return handlers.purgeTable(catalog, name) if purge else handlers.dropTable(catalog, name)
        raise AssertionError(method)

    def _read(self, kind: str, body: str) -> Any:
        return self._mapper.readValue(body, self._botocore_loader.loadClass(f"{REST}.{kind}"))

    def _namespace(self, name: str) -> Any:
        return self._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(f"{name}.t").namespace()


@contextmanager
def rest_catalog(spark: SparkSession, warehouse: Path, token: str) -> Iterator[tuple[Catalog, str]]:
    """Yield a catalog that requires a token, and its URL."""
    catalog = Catalog(spark, warehouse, token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            if self.headers.get("Authorization") != f"Bearer {catalog.token}":
                problem = {"message": "no token", "type": "NotAuthorizedException", "code": 401}
                status, text = 401, json.dumps({"error": problem})
            else:
                status, text = catalog.answer(self.command, self.path, body)
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815  # as http.server calls them

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield catalog, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
