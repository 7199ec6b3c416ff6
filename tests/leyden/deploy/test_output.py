"""A file is written whole or not at all."""

import pytest

from leyden import UserError
from leyden.deploy.output import writing


def test_it_takes_its_place_at_the_end(tmp_path):
    with writing(tmp_path / "new" / "a.txt") as beside:
        beside.write_text("all")
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "all" and len(list((tmp_path / "new").iterdir())) == 1


def test_after_an_error_all_is_as_before(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for path in (tmp_path / "a.txt", tmp_path / "new" / "a.txt"):
        with pytest.raises(KeyboardInterrupt), writing(path, overwrite=True) as beside:
            beside.write_text("half")
            raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "old"


def test_what_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for path, said in (("a.txt", "overwrite=true"), ("", "there already"), ("a.txt/b.txt", "cannot")):
        with pytest.raises(UserError, match=said), writing(tmp_path / path):
            pytest.fail("it was not refused")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_what_cannot_be_read_is_not_called_unwritable(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path / "a.txt"):
        (tmp_path / "missing.txt").read_text()
    with pytest.raises(UserError, match="cannot be written"), writing(tmp_path / "a.txt") as beside:
        beside.unlink()
    assert not list(tmp_path.iterdir())
