"""The home: files by name in a folder, or in an object store that several workers share.

A name is a relative path with `/`. Every write is whole or absent. In an object store, a local
scratch folder holds copies of files that never change, and nothing that another worker needs.
"""

import contextlib
import errno
import functools
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.storage.files import PARTIAL, atomic_path, set_aside, write_bytes
from rag_eval.storage.hashing import text_hash

_log = logging.getLogger(__name__)


class Home:
    """The files of a home.

    Parameters
    ----------
    url
        A folder, or an address that fsspec knows, such as `s3://bucket/rag_eval`. Its keys come
        from the environment, as the store's own tools read them; the address holds none.
    scratch
        Folder for local copies of an object store's files; a new one for each process by default.
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
        if not self.is_remote:
            self.folder = Path(self.url)
            return
        base = scratch or Path(tempfile.mkdtemp(prefix="rag_eval-"))
        self.folder = base / text_hash(self.url)[:16]

    def for_workers(self) -> "Home":
        """Return the home by an address that holds in any working folder."""
        return self if self.is_remote else Home(self.folder.resolve())

    @functools.cached_property
    def _files(self) -> Any:
        """The object store; without a cache of listings, because other workers write to it."""
        import fsspec

        scheme = self.url.partition("://")[0]
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
        return f"{self.url}/{name}" if self.is_remote else str(self.folder / name)

    def address_of(self, name: str) -> str:
        """Return the place of a file, for messages."""
        return f"{self.url}/{name}"

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[Any]:
        """Give the object store; an error other than an absent or present file names the home."""
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
        place = self._place(name)
        if not self.is_remote:
            return Path(place).read_bytes()
        with self._reaching() as files:
            return bytes(files.cat_file(place))

    def write(self, name: str, data: bytes) -> None:
        """Write a file, over one of this name."""
        place = self._place(name)
        if self.is_remote:
            with self._reaching() as files:
                files.pipe_file(place, data)
        else:
            write_bytes(Path(place), data)

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
        place = self._place(name)
        if not self.is_remote:
            return Path(place).is_file()
        with self._reaching() as files:
            return bool(files.isfile(place))

    def names(self, folder: str = "") -> list[str]:
        """List the whole files of a folder and of the folders below it, sorted."""
        place = self._place(folder)
        if self.is_remote:
            cut = len(self._files._strip_protocol(self.url)) + 1  # noqa: SLF001 - fsspec's own way
            with self._reaching() as files:
                # s3fs lists the folder itself if its first file appears during the listing
                listed = files.find(place, detail=True).items()
                paths = [path[cut:] for path, facts in listed if facts["type"] == "file"]
        else:
            paths = [
                path.relative_to(self.folder).as_posix()
                for path in Path(place).rglob("*")
                if path.is_file()
            ]
        return sorted(name for name in paths if not re.search(r"(^|/)\.", name))

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        place = self._place(name)
        if not self.is_remote:
            Path(place).unlink(missing_ok=True)
        elif self.has(name):
            with self._reaching() as files, contextlib.suppress(FileNotFoundError):
                files.rm_file(place)

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
        inside = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        # Removing a link to a file of another artifact frees no space.
        size = sum(file.stat().st_size for file in inside if file.stat().st_nlink == 1)
        aside = path.with_name(f"{PARTIAL}{path.name}")
        path.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
        return size

    def age_s(self, name: str) -> float:
        """Return the seconds since a file was written, by the clock of its store."""
        place = self._place(name)
        if not self.is_remote:
            return time.time() - Path(place).stat().st_mtime
        with self._reaching() as files:
            return time.time() - float(files.modified(place).timestamp())

    def set_aside(self, name: str, fault: str) -> None:
        """Take a damaged file or folder out of use, and name it in the log.

        It gets another name in a folder. An object store loses it, as does the scratch folder.
        """
        if not self.is_remote:
            set_aside(self.folder / name, fault)
            return
        self.delete(name)
        (self.folder / name).unlink(missing_ok=True)
        _log.warning("%s was damaged (%s); it is made again", self.address_of(name), fault)

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
        taken = []
        for name in self.names(folder) if self.is_remote else ():
            taken.append(target / name.removeprefix(f"{folder}/"))
            write_bytes(taken[-1], self.read(name))
        return taken


def open_home(settings: Settings) -> Home:
    """Open the home of the settings."""
    return Home(settings.home, settings.scratch)
