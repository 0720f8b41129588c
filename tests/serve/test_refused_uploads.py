"""A refusal reaches its client while that is still sending, also where the connection is to be closed."""

import http.client
from urllib.parse import urlsplit


def test_large_uploads(export, serve):
    server = serve(export(), keys=["a-key-of-sixteen-characters"], limits={"upload_bytes": 2**20})
    for status, path, key in (
        (401, "/v1/audio/transcriptions", "another"),
        (413, "/v1/audio/transcriptions", "a-key-of-sixteen-characters"),
        (404, "/v1/audio/nothing", "a-key-of-sixteen-characters"),
    ):
        for close in ({}, {"connection": "close"}):
            connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
            headers = {"authorization": f"Bearer {key}", "content-type": "multipart/form-data; boundary=x", **close}
            connection.request("POST", path, bytes(2**24), headers)
            answer = connection.getresponse()
            assert answer.status == status and b'"error"' in answer.read()
            connection.close()
