"""The storage side of Xet as hf_xet 1.8 uploads to it: chunks in xorbs, then shards that say which chunks make which
file (https://huggingface.co/docs/xet). Enough to receive files and to know their content; nothing is found to be there
already, and downloads go over plain HTTP, as for a client without Xet."""

import secrets
import struct
import time

from hub_store import Blob, Refused

ENTRY = 48  # bytes of every record of a shard
VERIFIED, WITH_SHA = 1 << 31, 1 << 30
END = b"\xff" * 32


def token(h, repo) -> tuple:
    """What an upload starts with: the storage's address and a token for it."""
    key, until = "xet_" + secrets.token_hex(8), int(time.time()) + 3600
    h.hub.xet_tokens[key] = repo.key
    headers = {"X-Xet-Cas-Url": h.hub.storage, "X-Xet-Access-Token": key, "X-Xet-Token-Expiration": str(until)}
    return 200, {"casUrl": h.hub.storage, "accessToken": key, "exp": until}, headers


def repo_of_token(h):
    if h.token not in h.hub.xet_tokens:
        raise Refused(401, "Unauthorized")
    return h.hub.repos[h.hub.xet_tokens[h.token]]


def put_xorb(h, hash):
    repo_of_token(h)
    new = hash not in h.hub.xorbs
    h.hub.xorbs[hash] = chunks(h.body)
    return 200, {"was_inserted": new}


def put_shard(h):
    repo = repo_of_token(h)
    for sha256, content in files(h.body, h.hub.xorbs):
        if Blob(content).sha256 != sha256:
            raise Refused(400, "The chunks do not make the file with the SHA-256 that was announced")
        repo.objects[sha256] = content
    return 200, {"result": 1}


def nothing(h, hash):
    """Neither chunks known from elsewhere nor a direct way into the storage: the client goes on without."""
    repo_of_token(h)
    raise Refused(404, "Not found")


def words(hash: bytes) -> str:
    """A hash as its name is written: four little-endian numbers of 64 bits."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", hash))


def files(shard: bytes, xorbs: dict[str, list[bytes]]):
    """(SHA-256, content) of each file of a shard."""
    at = ENTRY  # behind the header
    while shard[at : at + 32] != END:
        flags, count = struct.unpack_from("<II", shard, at + 32)
        at += ENTRY
        content = bytearray()
        for _ in range(count):
            name = words(shard[at : at + 32])
            first, last = struct.unpack_from("<II", shard, at + 40)
            if name not in xorbs:
                raise Refused(400, f"There is no xorb {name}")
            content += b"".join(xorbs[name][first:last])
            at += ENTRY
        at += ENTRY * count * bool(flags & VERIFIED)
        if not flags & WITH_SHA:
            raise Refused(400, "A file without its SHA-256 cannot be committed")
        yield words(shard[at : at + 32]), bytes(content)
        at += ENTRY


def chunks(xorb: bytes) -> list[bytes]:
    """The chunks of a xorb: each has a header of 8 bytes (version 0, size stored, how, size), then its bytes as they
    are (0), as an LZ4 frame (1), or as one with every fourth byte put together first (2)."""
    import pyarrow

    at, contents = 0, []
    while at < len(xorb) and xorb[at] == 0:
        stored, size = (int.from_bytes(xorb[at + i : at + i + 3], "little") for i in (1, 5))
        data, how = xorb[at + 8 : at + 8 + stored], xorb[at + 4]
        if how:
            data = pyarrow.decompress(data, size, "lz4", asbytes=True)
        if how == 2:
            groups, start = bytearray(len(data)), 0
            for i in range(4):
                count = len(groups[i::4])
                groups[i::4] = data[start : start + count]
                start += count
            data = bytes(groups)
        if len(data) != size:
            raise Refused(400, "A chunk does not have the size that its header says")
        contents.append(data)
        at += 8 + stored
    return contents
