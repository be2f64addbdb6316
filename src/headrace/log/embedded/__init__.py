"""The embedded log: a directory with a SQLite database, for any number of processes of one machine.

file_log.py         FileLog, the log itself; every method is one transaction
append.py           how appends are stored, and how a repeated append is recognised
reader.py           how records are read and checked
chunks.py           the rows and files of packed chunks (their bytes: log/chunk_format.py)
topics.py           the catalog of topics
markers.py          which batch of an application was delivered last
consumer_groups.py  members, rebalances and committed offsets of consumer groups
cleaner.py          runs retention.py (deletes expired records) and compaction.py from time to time
verify.py           reads everything and reports damage
database.py         SQLite connections and transactions
group_commit.py     one transaction for the writes of several threads
writer_lock.py      one writer at a time, among threads and processes
schema.py           the tables, and the checksums of their rows
"""
