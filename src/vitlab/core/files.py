"""Writes that are there whole or not at all, and names of files that are nearly those that were given."""

import contextlib
import errno
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path

from vitlab.core.errors import Error, near_names

# What a disk says that takes no more: full, over a quota, over `ulimit -f`, turned read-only, broken
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
MOST_BYTES = 200  # of a name that is a part of a temporary one
MOST_NAMES = 2000  # of a folder that are compared with a mistyped one
TORCHS = ("PytorchStreamWriter failed", "unexpected pos")  # in torch.save's errors, which do not say more


class CannotWriteError(Error, OSError):
    """A write that the disk refused."""


@contextlib.contextmanager
def atomic_file(path: Path, *, synced: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well.

    It is synced, unless thousands of files are written that can be made again: a disk syncs a hundred per second.
    """
    _make_parent(path)
    if path.is_dir():
        raise Error(f"{path} is a folder; give the name of a file to write.")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{_short(path.name)}.", suffix=_ending(path.name), dir=path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())
        if synced:
            sync(partial)
        partial.replace(path)
        if synced:
            sync(path.parent)
    except Exception as error:
        if (refused := _refused(path, error)) is not None:
            raise refused from error
        raise
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def check_writable(path: Path, read: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Refuse, before anything is computed for it, a file that cannot be written, or is one of those that are `read`.

    The folder that it is in is made.
    """
    _make_parent(path)
    if path.is_dir():
        raise Error(f"{path} is a folder; give the name of a file to write.")
    real = path.resolve()
    if path.exists() and any(Path(each).resolve() == real for each in read):
        raise Error(f"{path} is read here and would be written over: give another file to write.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _cannot_write(path, error) from error


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place, synced, when the block ends well."""
    path = path.resolve()  # a link to a folder stays, and the folder is replaced
    _make_parent(path)
    if path.exists() and not path.is_dir():
        raise Error(f"{path} is a file; give the name of a folder to write.")
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{_short(path.name)}.", suffix=".partial", dir=path.parent))
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        for file in partial.rglob("*"):
            file.chmod((0o777 if file.is_dir() else 0o666) & ~_umask())  # safetensors writes for the owner alone
            sync(file)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{_short(path.name)}.", suffix=".old", dir=path.parent))
            path.replace(old)  # a rename over an empty folder; a crash here leaves both under their hidden names
            try:
                partial.replace(path)
            except BaseException:
                old.replace(path)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            partial.replace(path)
        sync(path.parent)
    except Exception as error:
        if (refused := _refused(path, error)) is not None:
            raise refused from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def leftovers(folder: Path, name: str) -> list[Path]:
    """What writes of this name left in a folder when their process was killed."""
    ours = re.compile(rf"\.{re.escape(_short(name))}\.[a-z0-9_]{{8}}(\.old|{re.escape(_ending(name))})")
    return sorted(path for path in folder.iterdir() if ours.fullmatch(path.name)) if folder.is_dir() else []


def clear_up(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed writes of these names left in a folder; what was being replaced is put back.

    Nothing else is touched: hidden files may be anybody's.
    """
    for name in names:
        for left in leftovers(folder, name):
            if left.name.endswith(".old") and not (folder / name).exists():
                left.replace(folder / name)
            elif left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()


def near_paths(path: Path) -> list[str]:
    """Up to three paths that are there and nearly the one that is not: the first wrong part of it is exchanged."""
    here, parts = Path(path.anchor), list(path.parts[1:] if path.anchor else path.parts)
    try:
        while parts and (here / parts[0]).exists():
            here /= parts.pop(0)
        if not parts:
            return []
        there = list(itertools.islice(here.iterdir(), MOST_NAMES))
    except (OSError, ValueError):
        return []
    stems = near_names(Path(parts[0]).stem, (item.stem for item in there))  # an ending alone makes no two names alike
    close = [item for stem in stems for item in there if item.stem == stem]
    close = sorted(close, key=lambda item: -SequenceMatcher(None, parts[0].lower(), item.name.lower()).ratio())[:3]
    whole = [found.joinpath(*parts[1:]) for found in close]
    return [str(found) for found in whole if found.exists()] or [str(found) for found in close]


def free_path(path: Path) -> Path:
    """The path, or where something is there already the first of path-2, path-3, ... that is free."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _short(name: str) -> str:
    """A name that leaves room for what is added to it: file systems take 255 bytes."""
    return os.fsdecode(os.fsencode(name)[:MOST_BYTES])


def _ending(name: str) -> str:
    """Of a temporary file; libraries go by the suffix."""
    suffix = Path(name).suffix
    return f".partial{suffix if len(os.fsencode(suffix)) <= 20 else ''}"


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # refuses a name that no file can have
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> Error:
    return Error(f"Cannot write {path}: {error.strerror or error}.")


def _refused(path: Path, error: Exception) -> CannotWriteError | None:
    """The sentence for a write that the disk refused, whichever library was writing; None for other errors."""
    if isinstance(error, Error):
        return None
    for number in REFUSALS:
        if getattr(error, "errno", None) == number or os.strerror(number) in str(error):
            return CannotWriteError(f"Cannot write {path}: {os.strerror(number)}.")
    if any(words in str(error) for words in TORCHS):
        return CannotWriteError(f"Cannot write {path}: the disk is full, or the file larger than is allowed.")
    return None


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
