import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab.core.errors import Error
from vitlab.core.files import atomic_file, atomic_folder, check_writable, clear_up, near_paths


def everything(folder: Path) -> dict[str, str | None]:
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else None for path in folder.rglob("*")}


def write_half(path: Path, error: BaseException) -> None:
    path.write_text("half")
    raise error


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "a b.txt"
    with atomic_file(target) as partial:
        partial.write_text("new")
        assert not target.exists()
        assert partial.parent == target.parent
        assert partial.suffix == ".txt"
    assert everything(tmp_path) == {"new folder": None, "new folder/a b.txt": "new"}


def test_a_file_stays_as_it_was_when_the_block_fails(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_file(target) as partial:
        write_half(partial, KeyboardInterrupt())
    assert everything(tmp_path) == {"a.txt": "old"}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("an old and long text")
    with atomic_file(target) as partial:
        partial.write_text("new")
    assert everything(tmp_path) == {"a.txt": "new"}


def test_permissions_follow_the_umask_and_not_the_temporary_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "a.txt") as partial:
            partial.write_text("new")
        with atomic_folder(tmp_path / "b") as folder:
            (folder / "inside").mkdir(0o700)
            (folder / "inside" / "a.safetensors").touch(0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "b", tmp_path / "b" / "inside")] == [0o750] * 2
    assert stat.S_IMODE((tmp_path / "b" / "inside" / "a.safetensors").stat().st_mode) == 0o640


def test_a_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "stale").write_text("old")
    with atomic_folder(target) as partial:
        (partial / "inside").mkdir()
        (partial / "inside" / "a").write_text("new")
        assert everything(target) == {"stale": "old"}
    assert everything(tmp_path) == {"model": None, "model/inside": None, "model/inside/a": "new"}


def test_a_folder_stays_as_it_was_when_the_block_fails(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "a").write_text("old")
    with pytest.raises(ValueError, match="no"), atomic_folder(target) as partial:
        write_half(partial / "a", ValueError("no"))
    assert everything(tmp_path) == {"model": None, "model/a": "old"}


def test_a_folder_stays_as_it_was_when_the_last_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "a").write_text("old")
    replace = Path.replace

    def refuse(self: Path, to: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError("no")
        return replace(self, to)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no"), atomic_folder(target) as partial:
        (partial / "a").write_text("new")
    assert everything(tmp_path) == {"model": None, "model/a": "old"}


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_folder(tmp_path / "link") as partial:
        (partial / "a").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a").read_text() == "new"


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Error, match=r"folder is a folder; give the name of a file"), atomic_file(tmp_path / "folder"):
        pass
    with pytest.raises(Error, match=r"file is a file; give the name of a folder"), atomic_folder(tmp_path / "file"):
        pass
    with pytest.raises(Error, match=r"^Cannot write .*file/a: "), atomic_file(tmp_path / "file" / "a"):
        pass
    with pytest.raises(Error, match=r"^Cannot write .*: File name too long\.$"), atomic_file(tmp_path / ("n" * 256)):
        pass
    with pytest.raises(Error, match=r"^Cannot write .*: File name too long\.$"), atomic_folder(tmp_path / ("n" * 256)):
        pass
    assert everything(tmp_path) == {"file": "x", "folder": None}


def test_any_name_that_the_disk_takes_can_be_written(tmp_path: Path) -> None:
    names = ["n" * 251 + ".txt", "é" * 125 + ".json", "." + "s" * 254]
    for name in names:
        with atomic_file(tmp_path / name) as partial:
            partial.write_text("new")
    for _ in range(2):  # anew, and in the place of another
        with atomic_folder(tmp_path / ("f" * 255)) as folder:
            (folder / "a").write_text("new")
    assert everything(tmp_path) == {**dict.fromkeys(names, "new"), "f" * 255: None, f"{'f' * 255}/a": "new"}


def test_a_place_is_tried_before_anything_is_computed_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "new" / "a.csv")
    for path, why in ((tmp_path / "file" / "a", "Cannot write .*file/a: "), (tmp_path / "new", "new is a folder")):
        with pytest.raises(Error, match=why):
            check_writable(path)
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "new/../file", "link"):
        with pytest.raises(Error, match=f"{name} is read here and would be written over"):
            check_writable(tmp_path / name, ["digits", str(tmp_path / "file")])
    (tmp_path / "link").unlink()
    assert everything(tmp_path) == {"file": "x", "new": None}


def test_what_a_killed_write_left_is_cleared_up_and_nothing_else(tmp_path: Path) -> None:
    theirs = [".ssh.old", ".bashrc.old", ".notes.partial.txt", ".backup.20240101.old", ".model.old", ".a.json.partial"]
    for name in (*theirs, ".a.json.ab12_xyz.partial.json", ".model.ab12_xyz.partial/x", ".model.cd34_xyz.old/kept"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    clear_up(tmp_path, ["a.json", "model"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*theirs, "model"])
    assert (tmp_path / "model" / "kept").exists()
    clear_up(tmp_path / "nowhere", ["model"])


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth", "a.txt"])
def test_a_write_that_the_disk_refuses_is_a_sentence_that_names_the_file(tmp_path: Path, name: str) -> None:
    """Under `ulimit -f`, in a process of its own: whichever library writes."""
    code = f"""
import resource, signal, torch
from pathlib import Path
from safetensors.torch import save_file
from vitlab.core.errors import Error
from vitlab.core.files import atomic_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
writes = {{".safetensors": save_file, ".pth": torch.save, ".txt": lambda state, path: path.write_text("x" * 10**5)}}
try:
    with atomic_file(Path("{name}")) as partial:
        writes[partial.suffix]({{"x": torch.zeros(10**5)}}, partial)
except Error as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert re.fullmatch(rf"Cannot write {name}: (File too large|the disk is full, or .*)\.\n", done.stdout)
    assert not list(tmp_path.iterdir())


def test_near_paths_are_there_and_exchange_the_first_wrong_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "tom.jpg").touch()
    (tmp_path / "photons").mkdir()
    assert near_paths(tmp_path / "photo" / "cats" / "tom.jpg") == [str(tmp_path / "photos" / "cats" / "tom.jpg")]
    assert near_paths(tmp_path / "photos" / "cats" / "Tom.jpeg") == [str(tmp_path / "photos" / "cats" / "tom.jpg")]
    assert near_paths(tmp_path / "photo") == [str(tmp_path / "photos"), str(tmp_path / "photons")]
    assert near_paths(tmp_path / "photos" / "quite another") == []
    assert near_paths(tmp_path / "photos" / "cats" / "gone.jpg") == []  # the ending alone is alike
    assert near_paths(tmp_path / "photos") == []  # it is there
    assert near_paths(tmp_path / "photos" / "cats" / "tom.jpg" / "below a file") == []
    monkeypatch.chdir(tmp_path)
    assert near_paths(Path("photo")) == ["photos", "photons"]
    assert near_paths(Path("a\0b")) == []
    for name in ("photos.html", "photo.jpg"):
        Path(name).touch()
    assert near_paths(Path("phots"))[0] == "photos"  # whole names count, where several begin alike
    assert near_paths(Path("phots.htm"))[0] == "photos.html"
