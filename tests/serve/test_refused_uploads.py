"""A refusal reaches its client while that is still sending, also where the connection is to be closed."""

import http.client
from urllib.parse import urlsplit

import pytest


@pytest.mark.parametrize("close", [{}, {"connection": "close"}])
@pytest.mark.parametrize(
    ("status", "path", "authorization"),
    [
        (401, "/v1/audio/transcriptions", "Bearer another"),
        (413, "/v1/audio/transcriptions", "Bearer a-key-of-sixteen-characters"),
        (404, "/v1/audio/nothing", "Bearer a-key-of-sixteen-characters"),
    ],
)
def test_large_uploads(export, serve, status, path, authorization, close):
    server = serve(export(), keys=["a-key-of-sixteen-characters"], limits={"upload_bytes": 2**20})
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    headers = {"authorization": authorization, "content-type": "multipart/form-data; boundary=x", **close}
    connection.request("POST", path, bytes(2**24), headers)
    answer = connection.getresponse()
    assert answer.status == status and b'"error"' in answer.read()
    connection.close()
