"""Files and folders are whole or absent, and an older one stays until the new one is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesam.lab.files import whole_folder, write_atomically


def test_a_folder_appears_when_all_of_it_is_there(tmp_path: Path) -> None:
    target = tmp_path / "result"
    with whole_folder(target) as folder:
        (folder / "table.md").write_text("1")
        assert not target.exists()
    assert (target / "table.md").read_text() == "1"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_the_older_folder_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "result"
    target.mkdir()
    (target / "table.md").write_text("old")
    with pytest.raises(FileNotFoundError, match="no such folder"), whole_folder(target) as folder:
        (folder / "no such folder" / "table.md").write_text("new")
    assert (target / "table.md").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with whole_folder(target) as folder:
        (folder / "other.md").write_text("new")
    assert [path.name for path in target.iterdir()] == ["other.md"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_cannot_be_written_leaves_no_rest(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()  # in the way
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
