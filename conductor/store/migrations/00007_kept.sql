-- +goose Up

-- The agent of the node's newest boot stays up for the next work. The few nodes that it is so of are looked at again and again.
ALTER TABLE nodes ADD COLUMN kept INTEGER NOT NULL DEFAULT 0;
CREATE INDEX nodes_kept ON nodes (seq) WHERE kept = 1;

-- +goose Down
DROP INDEX nodes_kept;
ALTER TABLE nodes DROP COLUMN kept;
