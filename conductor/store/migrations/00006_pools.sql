-- +goose Up

-- What is remembered of nodes for the pools that keep them warm (JSON). The pools themselves are resources.
CREATE TABLE pool_members (
    node_uuid TEXT PRIMARY KEY REFERENCES nodes (uuid) ON DELETE CASCADE,
    doc       TEXT NOT NULL
);

-- Who does what only one conductor may do at a time, and until when it is that one's unless it says so again.
CREATE TABLE duties (
    name      TEXT   PRIMARY KEY,
    conductor TEXT   NOT NULL,
    until     BIGINT NOT NULL
);

-- +goose Down
DROP TABLE duties;
DROP TABLE pool_members;
