-- +goose Up

-- What people asked for is told apart from what machines and the conductor report: each kind is kept for its own time and in its own number.
-- Of older lines it is not known: those with a user are taken for requests, as the kind that is kept longer.
ALTER TABLE history ADD COLUMN asked INTEGER NOT NULL DEFAULT 0;
UPDATE history SET asked = 1 WHERE user_name > '';
DROP INDEX history_at;
CREATE INDEX history_at ON history (asked, at);

-- +goose Down
DROP INDEX history_at;
CREATE INDEX history_at ON history (at);
ALTER TABLE history DROP COLUMN asked;
