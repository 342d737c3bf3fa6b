-- +goose Up

-- Signed reports of erased disks. They outlive their nodes: whoever sells a machine still has to show them.
CREATE TABLE erasures (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT    NOT NULL UNIQUE,
    node_uuid TEXT    NOT NULL,
    at        BIGINT  NOT NULL,
    doc       BLOB    NOT NULL
);
CREATE INDEX erasures_node ON erasures (node_uuid, seq);

-- +goose Down
DROP TABLE erasures;
