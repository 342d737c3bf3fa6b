-- +goose Up

-- What a line of the history tells of the node at its time. Of older lines it is not known.
ALTER TABLE history ADD COLUMN state TEXT NOT NULL DEFAULT '';
ALTER TABLE history ADD COLUMN target TEXT NOT NULL DEFAULT '';
ALTER TABLE history ADD COLUMN seconds BIGINT;

-- What this program has still to change in documents that only the key of the installation opens.
CREATE TABLE pending (
    name TEXT PRIMARY KEY
);
INSERT INTO pending (name) VALUES ('traits of runbooks');

-- +goose Down
DROP TABLE pending;
ALTER TABLE history DROP COLUMN seconds;
ALTER TABLE history DROP COLUMN target;
ALTER TABLE history DROP COLUMN state;
