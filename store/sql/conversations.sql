-- What conversations have beside turns; added in format 2.

-- Turns that wait until those before them have ended, by their rows, which ascend.
CREATE TABLE queue(conversation TEXT, turn INTEGER, PRIMARY KEY(conversation, turn)) STRICT, WITHOUT ROWID;

-- The memory of a conversation, by an integer: `since` is set while entries wait to be passed on.
CREATE TABLE shelves(
  id INTEGER PRIMARY KEY, conversation TEXT NOT NULL UNIQUE, places INTEGER NOT NULL, change INTEGER NOT NULL, since INTEGER
) STRICT;
CREATE INDEX shelves_since ON shelves(since, conversation) WHERE since IS NOT NULL;
CREATE TABLE memory(
  shelf INTEGER, place INTEGER, entry TEXT NOT NULL, shown INTEGER NOT NULL, version INTEGER NOT NULL, change INTEGER NOT NULL,
  at INTEGER NOT NULL, waits INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY(shelf, place)) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX memory_entry ON memory(shelf, entry);
CREATE INDEX memory_waits ON memory(shelf, change) WHERE waits = 1;
CREATE TABLE notes(
  conversation TEXT, name TEXT, version INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY(conversation, name)
) STRICT, WITHOUT ROWID;
