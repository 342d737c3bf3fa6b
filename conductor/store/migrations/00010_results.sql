-- +goose Up

-- Results of steps that are too large to be kept with the node, which everything reads that works on it. Each is sealed as the job is.
CREATE TABLE results (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    node_uuid TEXT    NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    ref       TEXT    NOT NULL,
    sealed    BLOB    NOT NULL
);
CREATE INDEX results_node ON results (node_uuid, seq);

-- +goose Down
DROP TABLE results;
