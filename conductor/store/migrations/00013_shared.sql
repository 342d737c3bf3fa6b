-- +goose Up

-- The files that all conductors of an installation have in common, such as the CA of the agents, sealed. One row.
CREATE TABLE shared (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    sealed BLOB NOT NULL
);

-- +goose Down
DROP TABLE shared;
