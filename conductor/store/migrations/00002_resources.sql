-- +goose Up

-- All resources beside nodes and ports, by kind. There are few of them and they are small: what they are found and sorted by
-- beyond their name and node is read from doc (JSON; sealed where it may hold secrets).
CREATE TABLE resources (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    kind       TEXT    NOT NULL,
    uuid       TEXT    NOT NULL,
    name       TEXT,
    node_uuid  TEXT    REFERENCES nodes (uuid) ON DELETE CASCADE,
    created_at BIGINT  NOT NULL,
    updated_at BIGINT  NOT NULL,
    doc        BLOB    NOT NULL,
    UNIQUE (kind, uuid),
    UNIQUE (kind, name)
);
CREATE INDEX resources_node ON resources (node_uuid, kind);

CREATE TABLE resource_keys (
    kind  TEXT NOT NULL,
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    uuid  TEXT NOT NULL,
    PRIMARY KEY (kind, name, value),
    FOREIGN KEY (kind, uuid) REFERENCES resources (kind, uuid) ON DELETE CASCADE
);
CREATE INDEX resource_keys_uuid ON resource_keys (kind, uuid);

-- +goose Down
DROP TABLE resource_keys;
DROP TABLE resources;
