"""A stand-in for S3 on loopback (moto's server), a proxy before it that cuts connections, and a plain web server."""

import contextlib
import http.server
import os
import re
import socket
import threading
import time
from collections import Counter
from pathlib import Path

CHUNK = 65536
REQUEST = re.compile(rb"^(GET|PUT|HEAD|POST|DELETE) (\S+) HTTP/1.1\r\n")


class StandIn:
    """An S3 server with one bucket, which botocore and s3fs of this process and its children turn to."""

    def __init__(self, bucket: str = "bucket"):
        import boto3
        from moto.server import ThreadedMotoServer

        self.bucket = bucket
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        self.host, self.port = self.server.get_host_and_port()
        self.client = boto3.client(
            "s3",
            endpoint_url=f"http://{self.host}:{self.port}",
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret-of-the-stand-in",
        )
        self.client.create_bucket(Bucket=bucket)

    def environment(self, port: int | None = None) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-stand-in",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def stop(self) -> None:
        self.server.stop()


class Folder:
    """A folder in the bucket of a stand-in; names are those in it."""

    def __init__(self, server: StandIn, folder: str):
        self.server, self.client, self.bucket, self.folder = server, server.client, server.bucket, folder

    def url(self, name: str = "") -> str:
        return f"s3://{self.bucket}/{self.folder}/{name}".rstrip("/")

    def put(self, name: str, data: bytes) -> str:
        self.client.put_object(Bucket=self.bucket, Key=f"{self.folder}/{name}", Body=data)
        return self.url(name)

    def put_folder(self, name: str, folder: Path) -> str:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            self.put(f"{name}/{path.relative_to(folder)}", path.read_bytes())
        return self.url(name)

    def get(self, name: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=f"{self.folder}/{name}")["Body"].read()

    def names(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.folder}/{prefix}"
        )
        return [entry["Key"].removeprefix(f"{self.folder}/") for page in pages for entry in page.get("Contents", [])]

    def delete(self, prefix: str) -> None:
        for name in self.names(prefix):
            self.client.delete_object(Bucket=self.bucket, Key=f"{self.folder}/{name}")


class CuttingProxy:
    """Forwards connections to a server and cuts each after `cut_after` bytes of answers (None: never), or all that are
    open every `cut_every` seconds. Counts requests by method and path."""

    def __init__(self, host: str, port: int, cut_after: int | None = None, cut_every: float | None = None):
        self.target, self.cut_after = (host, port), cut_after
        self.requests: Counter[str] = Counter()
        self.cuts = self.sent = 0
        self.open: set[socket.socket] = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        if cut_every is not None:
            threading.Thread(target=self._cut_all, args=(cut_every,), daemon=True).start()

    def stop(self) -> None:
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.target)
            except OSError:
                return
            self.open.add(client)
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(CHUNK):
                if match := REQUEST.match(data):
                    self.requests[f"{match[1].decode()} {match[2].decode().partition('?')[0]}"] += 1
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            server.close()

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        sent = 0
        try:
            while data := server.recv(CHUNK):
                if self.cut_after is not None and sent + len(data) > self.cut_after:
                    client.sendall(data[: self.cut_after - sent])
                    self.cuts += 1
                    break
                client.sendall(data)
                sent += len(data)
                self.sent += len(data)
        except OSError:
            pass
        self.open.discard(client)
        for side in (client, server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _cut_all(self, seconds: float) -> None:
        while True:
            time.sleep(seconds)
            for client in list(self.open):
                self.cuts += 1
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)


class WebServer:
    """Serves a folder; with `ranges`, also parts of files. Answers `status` to all, if it is given."""

    def __init__(self, folder: Path, ranges: bool = False, status: int | None = None):
        self.requests: Counter[str] = Counter()
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __init__(self, *args):
                super().__init__(*args, directory=str(folder))

            def do_GET(self):
                outer.requests[f"GET {self.path}"] += 1
                wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if status is not None:
                    self.send_error(status)
                elif ranges and wanted:
                    self._send_range(int(wanted[1]), int(wanted[2]) + 1)
                else:
                    super().do_GET()

            def do_HEAD(self):
                if status is not None:
                    self.send_error(status)
                else:
                    super().do_HEAD()

            def _send_range(self, start, end):
                with open(self.translate_path(self.path), "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    end = min(end, size)
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
                    self.send_header("Content-Length", str(end - start))
                    self.end_headers()
                    self.wfile.flush()
                    os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # of connections that are cut
        self.host, self.port = self.server.server_address[:2]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
