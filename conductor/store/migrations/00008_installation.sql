-- +goose Up

-- Whose database this is: a name made at the first start, with a proof made with the key. The data directory has the same in a file.
CREATE TABLE installation (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    name  TEXT NOT NULL,
    proof TEXT NOT NULL
);

-- +goose Down
DROP TABLE installation;
