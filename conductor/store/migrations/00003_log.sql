-- +goose Up

-- The log outlives the nodes that it tells of: lines of a deleted node are marked as gone, and no longer the node's own history.
CREATE TABLE log (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid      TEXT    NOT NULL UNIQUE,
    node_uuid TEXT    NOT NULL,
    node_name TEXT    NOT NULL,
    at        BIGINT  NOT NULL,
    type      TEXT    NOT NULL,
    severity  TEXT    NOT NULL,
    event     TEXT    NOT NULL,
    conductor TEXT    NOT NULL,
    user_name TEXT    NOT NULL,
    project   TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    lessee    TEXT    NOT NULL,
    gone      INTEGER NOT NULL
);
INSERT INTO log (seq, uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone)
    SELECT h.seq, h.uuid, h.node_uuid, COALESCE(n.name, ''), h.at, h.type, h.severity, h.event, h.conductor, h.user_name, '', n.owner, n.lessee, 0
    FROM history h JOIN nodes n ON n.uuid = h.node_uuid ORDER BY h.seq;
DROP TABLE history;
ALTER TABLE log RENAME TO history;
CREATE INDEX history_node ON history (node_uuid, gone, seq);
CREATE INDEX history_at ON history (at);
CREATE INDEX history_user ON history (user_name, seq);

-- What was changed, for those who follow it. id is given by the program, without holes.
CREATE TABLE events (
    id        INTEGER PRIMARY KEY,
    at        BIGINT  NOT NULL,
    type      TEXT    NOT NULL,
    doc       TEXT    NOT NULL
);

-- +goose Down
DROP TABLE events;
CREATE TABLE log (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid      TEXT    NOT NULL UNIQUE,
    node_uuid TEXT    NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    at        BIGINT  NOT NULL,
    type      TEXT    NOT NULL,
    severity  TEXT    NOT NULL,
    event     TEXT    NOT NULL,
    conductor TEXT    NOT NULL,
    user_name TEXT    NOT NULL
);
INSERT INTO log SELECT seq, uuid, node_uuid, at, type, severity, event, conductor, user_name FROM history WHERE gone = 0;
DROP TABLE history;
ALTER TABLE log RENAME TO history;
CREATE INDEX history_node ON history (node_uuid, seq);
