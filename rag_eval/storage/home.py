"""Files, written whole or not at all, and the home, which holds files by name.

A home is a folder, or a place in an object store that several workers share. A name is a relative
path with `/`. In an object store, a local scratch folder holds copies of files that never change,
and nothing that another worker needs.
"""

import contextlib
import errno
import functools
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.storage.hashing import text_hash

PARTIAL = ".partial-"
"""Prefix of the names of half-written files and folders."""
DAMAGED = ".damaged-"
"""Prefix of the names of damaged files and folders that were set aside."""
HOME_FOLDERS = ("", "artifacts/*", "runs", "record/*", "embeddings/*")
"""Glob patterns of the folders of a home in which such names occur."""
_log = logging.getLogger(__name__)


# ---- Atomic files: written beside the target, flushed to disk, then renamed over it.


@contextlib.contextmanager
def atomic_path(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """Give a temporary path in the same folder, and rename it to `path` on success.

    A failure removes the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PARTIAL, suffix=path.suffix)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Write UTF-8 text with LF line ends, atomically."""
    with atomic_path(path, mode) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, atomically."""
    with atomic_path(path) as partial:
        partial.write_bytes(data)


def file_states(paths: Iterable[Path]) -> list[list[object]]:
    """Identify files by name, size and time of the last change, as JSON; absent ones are left out.

    A change of a file is a change of its state, so equal states need no look at the content.
    """
    states = ((path, path.stat()) for path in paths if path.is_file())
    return [[path.name, state.st_size, state.st_mtime_ns] for path, state in states]


def sweep(folder: Path, *patterns: str, older_than_s: float = 0.0) -> int:
    """Remove half-written files and folders of killed processes and return their number.

    `patterns` are glob patterns of the searched folders, `""` for `folder` itself. Files younger
    than `older_than_s` seconds stay, because other processes may still be writing them.
    """
    before = time.time() - older_than_s
    globs = (folder.glob(f"{pattern}/{PARTIAL}*".lstrip("/")) for pattern in patterns)
    left = [path for paths in globs for path in paths if path.stat().st_mtime <= before]
    for path in left:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return len(left)


# ---- The home


class Home:
    """The files of a home.

    `url` is a folder, or an address that fsspec knows, such as `s3://bucket/rag_eval`. Its keys
    come from the environment, as the store's own tools read them; the address holds none. `scratch`
    is the folder for local copies of an object store's files, by default new for each process.
    """

    def __init__(self, url: str | Path, scratch: Path | None = None) -> None:
        self.url = str(url).rstrip("/")
        self.is_remote = "://" in self.url
        if "@" in self.url and self.is_remote:
            raise InputError.of(
                "home_address",
                "an address of a home holds no user and no key: set them as the store's tools do",
                "settings",
                field="home",
                accepted="a folder, or <scheme>://<bucket>/<path>",
            )
        self.folder = Path(self.url)
        if self.is_remote:
            base = scratch or Path(tempfile.mkdtemp(prefix="rag_eval-"))
            self.folder = base / text_hash(self.url)[:16]

    def for_workers(self) -> "Home":
        """Return the home by an address that holds in any working folder."""
        return self if self.is_remote else Home(self.folder.resolve())

    @functools.cached_property
    def _files(self) -> Any:
        """The file system; without a cache of listings, because other workers write to it."""
        import fsspec

        scheme = self.url.partition("://")[0] if self.is_remote else "file"
        try:
            return fsspec.filesystem(scheme, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise InputError.of(
                "home_address",
                f"this address cannot be opened: {error}",
                "settings",
                field="home",
                found=f"{scheme}://",
                accepted="a folder, or an address of an installed fsspec file system (s3 needs "
                "the extra `s3`)",
            ) from error

    def _place(self, name: str) -> str:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{name!r} is outside of the home")
        return self.address_of(name)

    def address_of(self, name: str) -> str:
        """Return the place of a file, for messages."""
        return f"{self.url}/{name}"

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[Any]:
        """Give the file system; an error other than an absent or present file names the home."""
        try:
            yield self._files
        except (FileNotFoundError, FileExistsError, InputError):
            raise
        except Exception as error:
            message = "the object store cannot be used; check its address, keys and network"
            cause = f"{type(error).__name__}: {error}"
            raise InputError.of("home_unreachable", message, self.url, found=cause) from error

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError without it."""
        if not self.is_remote:
            return Path(self._place(name)).read_bytes()
        with self._reaching() as files:
            return bytes(files.cat_file(self._place(name)))

    def write(self, name: str, data: bytes) -> None:
        """Write a file, over one of this name."""
        if not self.is_remote:
            write_bytes(Path(self._place(name)), data)
            return
        with self._reaching() as files:
            files.pipe_file(self._place(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file; False, and nothing written, if there is one of this name.

        Of several workers that create a name at once, one gets True. An object store has to
        support conditional writes for it, as S3 does (If-None-Match).
        """
        place = self._place(name)
        if self.is_remote:
            with self._reaching() as files:
                try:
                    files.pipe_file(place, data, mode="create")
                except FileExistsError:
                    return False
                except OSError as error:  # S3's answers: 412 to the later of two, 409 to both
                    if "PreconditionFailed" in str(error) or self.has(name):
                        return False
                    raise
            return True
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=PARTIAL) as partial:
            partial.write(data)
            partial.flush()
            os.fsync(partial.fileno())
            try:
                path.hardlink_to(partial.name)
            except FileExistsError:
                return False
        path.chmod(0o644)
        return True

    def has(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        with self._reaching() as files:
            return bool(files.isfile(self._place(name)))

    def names(self, folder: str = "") -> list[str]:
        """List the whole files of a folder and of the folders below it, sorted."""
        cut = len(self._files._strip_protocol(self.url)) + 1  # noqa: SLF001 - fsspec's own way
        with self._reaching() as files:
            # s3fs lists the folder itself if its first file appears during the listing
            listed = files.find(self._place(folder), detail=True).items()
        names = (path[cut:] for path, facts in listed if facts["type"] == "file")
        return sorted(name for name in names if not re.search(r"(^|/)\.", name))

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        if self.has(name):
            with self._reaching() as files, contextlib.suppress(FileNotFoundError):
                files.rm_file(self._place(name))

    def remove(self, name: str) -> int:
        """Delete a file, or a folder with its files; return the number of freed bytes.

        What a crash leaves half deleted is named as half-written, or lacks its upper files.
        """
        place = self._place(name)
        if self.is_remote:
            with self._reaching() as files:
                facts_of = files.find(place, detail=True)
                for path in sorted(facts_of, key=lambda path: path.count("/")):
                    files.rm_file(path)
            shutil.rmtree(self.folder / name, ignore_errors=True)
            return sum(int(facts["size"]) for facts in facts_of.values())
        path = Path(place)
        inside = (file.stat() for file in (path, *path.rglob("*")) if file.is_file())
        # Removing a link to a file of another artifact frees no space.
        size = sum(state.st_size for state in inside if state.st_nlink == 1)
        aside = path.rename(path.with_name(f"{PARTIAL}{path.name}"))
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
        return size

    def age_s(self, name: str) -> float:
        """Return the seconds since a file was written, by the clock of its store."""
        with self._reaching() as files:
            return time.time() - float(files.modified(self._place(name)).timestamp())

    def set_aside(self, name: str, fault: str) -> None:
        """Take a damaged file or folder out of use, and name it in the log.

        It gets another name in a folder. An object store loses it, as does the scratch folder.
        """
        path, fate = self.folder / name, "it is made again when it is needed"
        try:
            if self.is_remote:
                self.delete(name)
                path.unlink(missing_ok=True)
            else:
                path.rename(path.with_name(f"{DAMAGED}{path.name}-{secrets.token_hex(4)}"))
        except FileNotFoundError:  # another process has renamed the file already
            return
        except OSError as error:  # for example, this user may only read the store
            fate = f"it cannot be set aside: {error.strerror}"
        _log.warning("%s was damaged (%s); %s", self.address_of(name), fault, fate)

    def fetch(self, name: str) -> Path:
        """Return a local path of a file that never changes; an object store's is copied once.

        Raises FileNotFoundError without it.
        """
        path = self.folder / name
        if self.is_remote and not path.is_file():
            with self._reaching() as files, atomic_path(path) as partial:
                files.get_file(self._place(name), str(partial))
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.address_of(name))
        return path

    def put(self, name: str, source: Path) -> None:
        """Write a file from a local file of any size."""
        place = self._place(name)
        if self.is_remote:
            with self._reaching() as files:
                files.put_file(str(source), place)
        else:
            with atomic_path(Path(place)) as partial:
                shutil.copyfile(source, partial)

    def share(
        self, folder: str, source: Path, files: Iterable[Path], *, alone: bool = False
    ) -> None:
        """Write files below `source` to a folder of an object store, in their order.

        `alone` first deletes the other files there. A folder home shares nothing, because its
        reports are at hand.
        """
        if not self.is_remote:
            return
        names = {f"{folder}/{path.relative_to(source).as_posix()}": path for path in files}
        for name in self.names(folder) if alone else ():
            if name not in names:
                self.delete(name)
        for name, path in names.items():
            self.put(name, path)

    def take(self, folder: str, target: Path) -> list[Path]:
        """Write the files that were shared to a local folder, and return their paths."""
        names = self.names(folder) if self.is_remote else []
        path_of = {name: target / name.removeprefix(f"{folder}/") for name in names}
        for name, path in path_of.items():
            write_bytes(path, self.read(name))
        return list(path_of.values())


def open_home(settings: Settings) -> Home:
    """Open the home of the settings."""
    return Home(settings.home, settings.scratch)
