"""List the licences of all installed packages and of the shared libraries that their wheels bring along.

    python docker/licences.py > LICENSES

Wheels contain compiled libraries under licences of their own, which the metadata of the package does not name. Licences
that impose conditions on distribution (GPL, LGPL) are known here by the name of the library.
"""

import importlib.metadata
import re
from collections.abc import Iterator

BUNDLED = {
    "espeak-ng": "GPL-3.0-or-later",
    "x264": "GPL-2.0-or-later",
    "x265": "GPL-2.0-or-later",
    "avcodec": "GPL-2.0-or-later where it is linked with x264 or x265, else LGPL-2.1-or-later",
    "avformat": "as avcodec",
    "avfilter": "as avcodec",
    "avutil": "as avcodec",
    "avdevice": "as avcodec",
    "swscale": "as avcodec",
    "swresample": "as avcodec",
    "postproc": "GPL-2.0-or-later",
    "soxr": "LGPL-2.1-or-later",
    "sndfile": "LGPL-2.1-or-later",
    "mp3lame": "LGPL-2.0-or-later",
    "mpg123": "LGPL-2.1-or-later",
    "gnutls": "LGPL-2.1-or-later",
    "nettle": "LGPL-3.0-or-later or GPL-2.0-or-later",
    "hogweed": "LGPL-3.0-or-later or GPL-2.0-or-later",
    "gmp": "LGPL-3.0-or-later or GPL-2.0-or-later",
    "unistring": "LGPL-3.0-or-later or GPL-2.0-or-later",
    "gomp": "GPL-3.0-or-later with the GCC Runtime Library Exception",
    "gfortran": "GPL-3.0-or-later with the GCC Runtime Library Exception",
    "quadmath": "LGPL-2.1-or-later",
    "cudart": "NVIDIA CUDA Toolkit EULA",
    "cublas": "NVIDIA CUDA Toolkit EULA",
    "cudnn": "NVIDIA cuDNN EULA",
    "nccl": "BSD-3-Clause",
}
"""Licence of a shared library, by the beginning of its name without `lib`."""
SHARED = re.compile(r"(?:^|/)(?:lib)?([\w+-]+?)(?:-[0-9a-f]{8})?(?:\.so[.\d]*|\.dylib|\.dll)$")


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    """The licence that a package names, in the newest of the fields for it that it fills."""
    about = distribution.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License")]
    text = about.get("License-Expression") or ", ".join(classifiers) or (about.get("License") or "").strip()
    return text.partition("\n")[0][:100] or "not named in its metadata"


def libraries_of(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, str]]:
    """The shared libraries of a package that are known here, with their licences; no extension modules of Python."""
    names = {
        m[1] for file in distribution.files or () if (m := SHARED.search(str(file))) and "cpython" not in file.name
    }
    for name in sorted(names):
        for begin, licence in BUNDLED.items():
            if re.match(rf"{re.escape(begin)}(?![a-z])", name):
                yield name, licence


def licence_files(distribution: importlib.metadata.Distribution) -> list[str]:
    """Paths of the licence texts that a package installed."""
    pattern = re.compile(r"(?i)(?:^|/)(licen[cs]es?|copying|notice)[^/]*(/[^/]+)*$")
    files = [
        file for file in distribution.files or () if pattern.search(str(file)) and file.suffix not in (".py", ".pyc")
    ]
    return [str(file.locate()) for file in files]


def main() -> None:
    by_name = {d.metadata["Name"].lower(): d for d in importlib.metadata.distributions()}
    for name, distribution in sorted(by_name.items()):
        print(f"{name} {distribution.version}: {licence_of(distribution)}")
        for library, licence in libraries_of(distribution):
            print(f"    brings {library}: {licence}")
        for path in licence_files(distribution):
            print(f"    {path}")


if __name__ == "__main__":
    main()
