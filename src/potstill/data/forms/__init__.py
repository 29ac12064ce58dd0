"""One file for each form of rows: which columns of a table hold it, and how a record is read."""
