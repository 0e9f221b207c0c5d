-- Turns by an integer, so that nothing beside them repeats their ids. What is large is kept apart from what changes often.
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE turns(
  id INTEGER PRIMARY KEY, turn TEXT NOT NULL UNIQUE, root TEXT,  -- root: only of children
  parent TEXT, agent TEXT NOT NULL, agent_version TEXT NOT NULL, conversation TEXT, tenant TEXT,
  digest TEXT NOT NULL, created INTEGER NOT NULL, schema INTEGER NOT NULL, status TEXT NOT NULL, updated INTEGER NOT NULL,
  state TEXT NOT NULL, version INTEGER NOT NULL, save_id TEXT NOT NULL, activation TEXT, node TEXT, epoch INTEGER NOT NULL,
  lease INTEGER NOT NULL, wake INTEGER, cancel TEXT, cancel_acked TEXT, crashes INTEGER NOT NULL, quarantine TEXT,
  quarantined_at INTEGER NOT NULL, unread INTEGER NOT NULL, message_count INTEGER NOT NULL, event_count INTEGER NOT NULL,
  expires INTEGER, used_in INTEGER NOT NULL, used_out INTEGER NOT NULL, used_total INTEGER NOT NULL, calls INTEGER NOT NULL,
  children INTEGER NOT NULL  -- of a root: all turns of its tree but itself
) STRICT;
CREATE INDEX turns_root ON turns(root) WHERE root IS NOT NULL;
CREATE INDEX turns_wake ON turns(wake, turn) WHERE wake IS NOT NULL;
CREATE INDEX turns_node ON turns(node) WHERE node IS NOT NULL;  -- only of those that have an owner
CREATE INDEX turns_status ON turns(status);
CREATE INDEX turns_conversation ON turns(conversation) WHERE conversation IS NOT NULL;
CREATE INDEX turns_tenant ON turns(tenant) WHERE tenant IS NOT NULL;
CREATE INDEX turns_quarantine ON turns(quarantined_at) WHERE quarantine IS NOT NULL;
CREATE INDEX turns_expires ON turns(expires) WHERE expires IS NOT NULL;

CREATE TABLE snapshots(id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;

-- What one save appended: history entries from `message_at`, packed, and events numbered from `event_at` + 1.
CREATE TABLE log(
  id INTEGER PRIMARY KEY, turn INTEGER NOT NULL, message_at INTEGER NOT NULL, messages INTEGER NOT NULL,
  event_at INTEGER NOT NULL, events INTEGER NOT NULL, epoch INTEGER NOT NULL, message_bodies BLOB, event_body BLOB) STRICT;
CREATE INDEX log_turn ON log(turn);

CREATE TABLE waits(
  id INTEGER PRIMARY KEY, turn INTEGER NOT NULL, wait TEXT NOT NULL, kind TEXT NOT NULL, created INTEGER NOT NULL,
  agent TEXT NOT NULL, tenant TEXT, assignee TEXT, body BLOB NOT NULL) STRICT;
CREATE INDEX waits_turn ON waits(turn);
CREATE INDEX waits_created ON waits(created);
CREATE INDEX waits_assignee ON waits(assignee, created) WHERE assignee IS NOT NULL;
CREATE INDEX waits_tenant ON waits(tenant, created) WHERE tenant IS NOT NULL;

CREATE TABLE mail(
  id INTEGER PRIMARY KEY, turn INTEGER NOT NULL, message TEXT NOT NULL, command TEXT, wait TEXT,
  at INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE INDEX mail_turn ON mail(turn);
CREATE TABLE seen(id INTEGER PRIMARY KEY, turn INTEGER NOT NULL, message TEXT NOT NULL, at INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX seen_message ON seen(turn, message);

-- Per tree, which is the row of its root. A receipt's keys lie together: c command, w wait, k call.
CREATE TABLE replies(
  id INTEGER PRIMARY KEY, tree INTEGER NOT NULL, message TEXT NOT NULL, at INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE INDEX replies_message ON replies(tree, message);
CREATE TABLE receipts(id INTEGER PRIMARY KEY, tree INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE receipt_keys(tree INTEGER, key TEXT, receipt INTEGER NOT NULL, PRIMARY KEY(tree, key)) STRICT, WITHOUT ROWID;

CREATE TABLE conversations(conversation TEXT PRIMARY KEY, turn TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE nodes(node TEXT PRIMARY KEY, beat INTEGER NOT NULL, agents TEXT NOT NULL) STRICT, WITHOUT ROWID;
-- The files beside the database that living nodes hold locked.
CREATE TABLE locks(name TEXT PRIMARY KEY, node TEXT NOT NULL) STRICT, WITHOUT ROWID;
