"""Where the members of a tar file lie, whoever wrote it, and what is said of one that is cut off."""

import io
import tarfile

import pytest

from codec_shards import write_tar
from stentor.data.tar import MOST_OPEN, index, read_at


@pytest.fixture
def tar(tmp_path):
    """Writes a tar file of these members and answers its path."""

    def make(members, kind=tarfile.PAX_FORMAT, name="a.tar"):
        path = tmp_path / name
        write_tar(path, members, kind)
        return path

    return make


LONG = "a-very-long-folder-name/" * 8 + "é" * 40 + ".npy"
MEMBERS = {"a.npy": b"first", "b/c.npy": b"x" * 512, LONG: b"y" * 1300, "empty.npy": b"", "last.npy": b"last"}


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_are_where_tarfile_says(tar, kind):
    path = tar(MEMBERS, kind)
    listing = index(path)
    assert listing.damage is None and not listing.truncated
    assert list(listing.members) == list(MEMBERS)
    with tarfile.open(path) as file:
        assert [tuple(p) for p in listing.members.values()] == [(m.offset_data, m.size) for m in file]
    for name, (offset, size) in listing.members.items():
        assert read_at({"path": str(path), "offset": offset, "size": size}) == MEMBERS[name]


def test_prefixes_folders_and_links(tmp_path):
    """ustar splits long paths in two; what is no file is left out, and a leading ./ does not count."""
    path = tmp_path / "a.tar"
    far = "folder/" * 20 + "far.npy"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for name, kind, data in [
            ("d", tarfile.DIRTYPE, b""),
            ("l", tarfile.SYMTYPE, b""),
            (far, b"0", b"data"),
            ("./b.npy", b"0", b"b"),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(data), "b.npy" if name == "l" else ""
            file.addfile(info, io.BytesIO(data))
    assert list(index(path).members) == [far, "b.npy"]


def test_a_pax_size_counts(tmp_path):
    """What does not fit into the header's digits stands in an extended one; here it says another size on purpose."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        info = tarfile.TarInfo("a.npy")
        info.size, info.pax_headers = 700, {"size": "3"}
        file.addfile(info, io.BytesIO(b"z" * 700))
    assert index(path).members["a.npy"].size == 3


def test_a_file_that_is_cut_off_keeps_its_whole_members(tar):
    path = tar({f"{i}.npy": bytes(600) for i in range(4)})
    content = path.read_bytes()
    step = 512 + 1024
    for size, count, damage in [
        (2 * step + 900, 2, "cut off after 3,972 bytes, inside of '2.npy'"),
        (2 * step + 512 + 599, 2, "inside of '2.npy'"),
        (2 * step + 512 + 600, 3, "no end mark"),  # all of the data is there, the padding is not
        (2 * step + 100, 2, "inside of a header"),
        (2 * step, 2, "no end mark"),
        (0, 0, "inside of a header"),
    ]:
        path.write_bytes(content[:size])
        listing = index(path)
        assert (len(listing.members), listing.truncated) == (count, True) and damage in listing.damage, size


def test_what_is_no_tar_file(tar, tmp_path):
    path = tar({f"{i}.npy": bytes(600) for i in range(4)})
    data = bytearray(path.read_bytes())
    data[2 * 1536 + 5] ^= 1
    path.write_bytes(data)
    listing = index(path)
    assert list(listing.members) == ["0.npy", "1.npy"] and not listing.truncated
    assert listing.damage == "is damaged at byte 3,072: no tar header"
    (tmp_path / "z.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    assert index(tmp_path / "z.tar").damage == "is compressed"
    with pytest.raises(FileNotFoundError):
        index(tmp_path / "none.tar")


def test_reading_keeps_few_files_open(tar):
    from stentor.data import tar as module

    places = []
    for i in range(MOST_OPEN + 8):
        path = tar({"a": bytes([i])}, name=f"{i}.tar")
        places.append({"path": str(path), "offset": 512, "size": 1})
    for _ in range(2):
        assert [read_at(p)[0] for p in places] == list(range(MOST_OPEN + 8))
    assert len(module._descriptors) == MOST_OPEN
