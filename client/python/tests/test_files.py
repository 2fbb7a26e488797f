"""Files of the agent's machine."""

import os
import pathlib
import threading

import pytest

import telexec


def test_files_are_written_and_read(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    data = os.urandom(1_000_000)
    info = agent.files.write(tmp_path / "a/b", data, make_parents=True, mode=0o600)
    assert (info.kind, info.size, info.mode) == ("file", len(data), 0o600)
    assert (tmp_path / "a/b").read_bytes() == data == agent.files.read(tmp_path / "a/b")
    assert agent.files.read(str(tmp_path / "a/b"), offset=10, length=5) == data[10:15]
    assert agent.files.write(tmp_path / "a/b", "").size == 0
    assert agent.files.read(tmp_path / "a/b") == b""


def test_directories(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    names = sorted([*(f"f{number}" for number in range(1500)), os.fsdecode(b"\xff")], key=os.fsencode)
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "z").symlink_to("f1")
    entries = agent.files.list(tmp_path)
    assert sorted((entry.path for entry in entries), key=os.fsencode) == sorted([*names, "z"], key=os.fsencode)
    assert agent.files.info(tmp_path / "z").link_target == "f1"
    with pytest.raises(OSError, match="not empty"):
        agent.files.remove(tmp_path)
    agent.files.remove(tmp_path, recursive=True)
    assert not tmp_path.exists()


def test_errors_are_those_of_the_system(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot open .*none") as none:
        agent.files.read(tmp_path / "none")
    assert isinstance(none.value, telexec.FileError) and isinstance(none.value, telexec.Error)
    assert (none.value.errno, none.value.filename) == (2, str(tmp_path / "none"))
    with pytest.raises(FileExistsError):
        agent.files.write(tmp_path / "new", "", exclusive=True)
        agent.files.write(tmp_path / "new", "", exclusive=True)
    with pytest.raises(IsADirectoryError):
        agent.files.read(tmp_path)
    with pytest.raises(NotADirectoryError):
        agent.files.list(tmp_path / "new")


def test_another_users_files(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    if os.getuid() != 0:
        pytest.skip("the agent does not run as root")
    (tmp_path / "secret").write_text("")
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(PermissionError):
        agent.files.read(tmp_path / "secret", user="nobody")


def test_directories_are_made_and_files_renamed(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    files = agent.files
    files.make_directory(tmp_path / "a", 0o700)
    assert files.info(tmp_path / "a").mode == 0o700 and (tmp_path / "a").is_dir()
    with pytest.raises(FileExistsError):
        files.make_directory(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.make_directory(tmp_path / "b/c")
    files.make_directory(tmp_path / "b/c", parents=True)
    files.make_directory(tmp_path / "b/c", parents=True)
    files.write(tmp_path / "b/c/file", "new")
    files.write(tmp_path / "file", "old")
    with pytest.raises(FileExistsError):
        files.rename(tmp_path / "b/c/file", tmp_path / "file")
    files.rename(tmp_path / "b/c/file", tmp_path / "file", replace=True)
    assert files.read(tmp_path / "file") == b"new" and not (tmp_path / "b/c/file").exists()
    files.rename(str(tmp_path / "b"), str(tmp_path / "d"))
    assert (tmp_path / "d/c").is_dir()
    with pytest.raises(FileNotFoundError):
        files.rename(tmp_path / "none", tmp_path / "file")


def test_files_are_searched(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    for name, text in {"a.py": "one\ntwo\nthree\n", "sub/b.py": "Two", ".hidden.py": "two", "c.txt": "two"}.items():
        agent.files.write(tmp_path / name, text, make_parents=True)

    def names(found: telexec.Found[telexec.FileInfo]) -> list[str]:
        return [str(pathlib.Path(info.path).relative_to(tmp_path)) for info in found.matches]

    assert names(agent.files.glob(tmp_path, "*.py")) == ["a.py", "sub/b.py"]
    assert names(agent.files.glob(tmp_path, "*.py", include_hidden=True)) == [".hidden.py", "a.py", "sub/b.py"]
    limited = agent.files.glob(tmp_path, "", max_matches=1)
    assert len(limited.matches) == 1 and limited.limit_reached
    found = agent.files.search(tmp_path, "^t.o$", glob="*.py", before_context=1)
    assert found.matches == [
        telexec.Line(str(tmp_path / "a.py"), 1, b"one", True, False),
        telexec.Line(str(tmp_path / "a.py"), 2, b"two", False, False),
    ]
    assert (found.limit_reached, found.files_searched) == (False, 2)
    assert len(agent.files.search(tmp_path, "TWO", case_insensitive=True).matches) == 3
    with pytest.raises(telexec.Invalid, match="^regex: "):
        agent.files.search(tmp_path, "(")
    with pytest.raises(telexec.Invalid, match="^glob: "):
        agent.files.glob(tmp_path, "[")
    with pytest.raises(FileNotFoundError):
        agent.files.glob(tmp_path / "none", "*")


def test_changes_are_seen(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    with agent.files.watch(tmp_path) as watch:
        (tmp_path / "a").touch()
        change = next(watch)
        assert (change.change, change.path) == ("created", str(tmp_path / "a"))
    assert list(watch) == []
    with agent.files.watch(tmp_path) as watch:
        closing = threading.Timer(0.1, watch.close)
        closing.start()
        for _ in watch:
            pass
    (tmp_path / "a").unlink()


def test_times_of_any_age(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    for seconds, shown in ((-1.5, "1969-12-31 23:59:58.500000+00:00"), (1e9, "2001-09-09 01:46:40+00:00")):
        (tmp_path / "old").touch()
        os.utime(tmp_path / "old", (seconds, seconds))
        assert str(agent.files.info(tmp_path / "old").modify_time) == shown


@pytest.mark.parametrize("data", [5, None, ["x"]])
def test_content_that_is_none(agent: telexec.Agent, tmp_path: pathlib.Path, data: object) -> None:
    with pytest.raises(TypeError, match="argument 'data': expected str or bytes"):
        agent.files.write(tmp_path / "file", data)  # type: ignore[arg-type]
    assert not (tmp_path / "file").exists()
