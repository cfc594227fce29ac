"""The folder of state files holds secrets and is believed: it has to be this user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlt.testbed import TestbedError, state
from mlt.testbed.state import State

OTHER_USER = 65_534


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, as for one who is not root: there is none yet."""
    monkeypatch.setattr(state, "ROOT_DIRECTORY", tmp_path / "mlt-testbed")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "mlt-testbed"


def one() -> State:
    return State(name="bed", owner=None, topology={}, namespaces={}, secret="of the jobs that run there")


def test_create__makes_a_folder_of_this_users_alone(runtime: Path) -> None:
    state.create(one())
    assert runtime.stat().st_mode & 0o022 == 0
    assert (runtime / "bed.json").stat().st_mode & 0o077 == 0
    assert state.read("bed").secret == one().secret
    with state.locked():
        pass


@pytest.mark.parametrize("how", ["open", "foreign", "link"])
def test_folder__of_another_user_is_neither_read_nor_written(runtime: Path, tmp_path: Path, how: str) -> None:
    place = tmp_path / "elsewhere" if how == "link" else runtime
    place.mkdir(mode=0o755)
    (place / "bed.json").write_text('{"version": 1}')
    (place / "lock").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("of the user")
    if how == "open":
        place.chmod(0o777)
    elif how == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(place, OTHER_USER, OTHER_USER)
    else:
        runtime.symlink_to(place)
    for act in (state.all_states, lambda: state.create(one()), lambda: state.write(one()), state.locked().__enter__):
        with pytest.raises(TestbedError, match=f"{runtime}.*not this user's alone"):
            act()
    assert (tmp_path / "precious").read_text() == "of the user"
    assert sorted(path.name for path in place.iterdir()) == ["bed.json", "lock"]


@pytest.mark.parametrize("content", ["[" * 5_000, "[]", '"bed"', "{", '{"version": 1, "foreign": 2}', "9" * 5_000])
def test_all_states__skips_a_file_of_anything_else(runtime: Path, content: str) -> None:
    state.create(one())
    (runtime / "other.json").write_text(content)
    assert [found.name for found in state.all_states()] == [one().name]
