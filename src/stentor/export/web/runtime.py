"""onnxruntime-web: the files of its npm package that a page needs, of one version whose content is checked."""

import base64
import hashlib
import tarfile
import urllib.request
import zlib
from pathlib import Path

from stentor.data.atomic_write import atomic_path
from stentor.data.storage_cache import cache_folder
from stentor.errors import ConfigError

NAME, VERSION = "onnxruntime-web", "1.30.0"
ADDRESS = f"https://registry.npmjs.org/{NAME}/-/{NAME}-{VERSION}.tgz"
INTEGRITY = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""SHA-512 of the package in base64, as npm's registry states it (`dist.integrity`)."""
FILES = {
    "ort.wasm.min.mjs": "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
    "ort-wasm-simd-threaded.mjs": "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""Files of the package's folder `dist` for the WebAssembly backend, and the SHA-256 of each in hexadecimal."""
PATIENCE = 60
"""Seconds without an answer after which a download fails."""
OFFLINE = (
    f"On a machine with a network run `npm pack {NAME}@{VERSION}`, bring the file here and name it with --runtime FILE "
    "(a folder with the unpacked package works, too)"
)


def write_runtime(to: Path, source: Path | None = None) -> None:
    """Write `FILES` into the folder `to`, which is made.

    `source`: the package (.tgz) or a folder with it unpacked; None: `package()`. Raises ConfigError when the files are
    not those of `VERSION`, and as `package` does.
    """
    place = source or package()
    contents = _contents(place)
    to.mkdir(parents=True, exist_ok=True)
    for name, digest in FILES.items():
        if hashlib.sha256(contents[name]).hexdigest() != digest:
            raise ConfigError(
                f"{place}: {name} is not that of {NAME} {VERSION} (its SHA-256 differs): take this version. {OFFLINE}."
            )
        (to / name).write_bytes(contents[name])


def _contents(place: Path) -> dict[str, bytes]:
    """Contents of `FILES` in the package's folder `dist`."""
    try:
        if place.is_dir():
            folders = [place / part for part in (".", "dist", "package/dist", f"node_modules/{NAME}/dist")]
            folder = next((f for f in folders if (f / next(iter(FILES))).is_file()), place)
            return {name: (folder / name).read_bytes() for name in FILES}
        with tarfile.open(place) as archive:  # in one pass, as each look at another place unpacks it again
            members = {Path(m.name).name: m for m in archive.getmembers() if m.name.startswith("package/dist/")}
            ordered = sorted((members[name] for name in FILES), key=lambda member: member.offset)
            return {Path(m.name).name: archive.extractfile(m).read() for m in ordered}  # type: ignore[union-attr]
    except (OSError, KeyError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ConfigError(
            f"--runtime {place} {'does not hold' if place.exists() else 'is not there: it has to hold'} {NAME}. "
            f"{OFFLINE}."
        ) from error


def package() -> Path:
    """The package in Stentor's cache folder, downloaded where it is not there or damaged. Raises ConfigError when it
    cannot be downloaded or is not that of `VERSION`."""
    file = cache_folder() / "npm" / f"{NAME}-{VERSION}.tgz"
    if file.is_file() and _integrity(file.read_bytes()) == INTEGRITY:
        return file
    file.parent.mkdir(exist_ok=True)
    try:
        with urllib.request.urlopen(ADDRESS, timeout=PATIENCE) as response:
            content = response.read()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{NAME} {VERSION} cannot be downloaded from {ADDRESS} ({error}): check the connection. {OFFLINE}."
        ) from error
    if (found := _integrity(content)) != INTEGRITY:
        raise ConfigError(
            f"What {ADDRESS} answers is not {NAME} {VERSION}: its SHA-512 is {found[:12]}... and not {INTEGRITY[:12]}"
            f"... Try again; behind a proxy that changes downloads use another connection. {OFFLINE}."
        )
    try:
        with atomic_path(file) as part:
            part.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): make room or set STENTOR_CACHE.") from error
    return file


def _integrity(content: bytes) -> str:
    return base64.b64encode(hashlib.sha512(content).digest()).decode()
