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
