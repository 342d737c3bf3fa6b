-- +goose Up

-- The machines of reservations: no one else is given a node in its time. The reservations themselves are resources.
CREATE TABLE promises (
    reservation_uuid TEXT COLLATE "C" NOT NULL,
    slot             INTEGER NOT NULL,
    node_uuid        TEXT COLLATE "C" NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    from_at          BIGINT NOT NULL,
    until_at         BIGINT NOT NULL,
    given            INTEGER NOT NULL, -- the project has it, or had it
    PRIMARY KEY (reservation_uuid, slot)
);
CREATE INDEX promises_node ON promises (node_uuid, until_at);

-- +goose Down
DROP TABLE promises;
