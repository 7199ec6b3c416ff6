import logging

from leyden.run.run_log import logging_to


def test_a_log_waits_until_its_run_begins(tmp_path, capsys):
    file, log = tmp_path / "train.log", logging.getLogger("leyden.test")
    with logging_to(file):
        log.info("refused")
    assert not file.exists() and "refused" in capsys.readouterr().out
    with logging_to(file) as release:
        log.info("first")
        logging.getLogger("leyden.file").error("second")
        assert not file.exists()
        release()
        assert [line.split(" ", 2)[2] for line in file.read_text().splitlines()] == ["first", "second"]
        log.info("third")
        assert file.read_text().splitlines()[2].endswith("third")
