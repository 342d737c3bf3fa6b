-- +goose Up

-- One row for each ingotd that has worked with this database: the newest life of each name. A command that needs the
-- database for itself has the name ''.
CREATE TABLE conductors (
    name      TEXT   COLLATE "C" PRIMARY KEY,
    epoch     BIGINT NOT NULL UNIQUE, -- of this life; larger than those of all lives that began before
    state     TEXT   NOT NULL,        -- up, draining, or gone: its transactions are refused
    beat      BIGINT NOT NULL,        -- rises while it lives
    changed   BIGINT NOT NULL,        -- rises over all rows with each change of epoch, state or doc
    joined_at BIGINT NOT NULL,
    seen_at   BIGINT NOT NULL,        -- the last beat, by the database's clock; shown only
    doc       TEXT   NOT NULL
);
DROP TABLE holder;
