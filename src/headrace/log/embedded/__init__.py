"""The embedded log: a directory with a SQLite database, for the processes of one machine."""
