"""The embedded log: a directory with a SQLite database, for any number of processes of one machine.

file_log.py         FileLog, the log itself; every method is one transaction
append.py           how appends are stored, how a repeated append is recognised, and the delivery markers
reader.py           how records are read and checked, and how the whole log is verified
chunks.py           the rows and files of packed chunks (their bytes: log/chunk_format.py)
topics.py           the catalog of topics
consumer_groups.py  members, rebalances and committed offsets of consumer groups
cleaner.py          deletes expired records, and runs compaction, from time to time
compaction.py       keeps the last record of every key, and merges small chunks
database.py         SQLite connections, transactions, and the writer lock
group_commit.py     one transaction for the writes of several threads
schema.py           the tables, and the checksums of their rows
"""
