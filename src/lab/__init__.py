"""Yours: models, data sets, tasks, callbacks and operators, to read, edit, add to and delete from."""
