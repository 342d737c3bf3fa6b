-- +goose Up

-- Sessions of the dashboard that were signed out before their time, by hash: their cookies are good at no conductor any more.
CREATE TABLE ended_sessions (
    id    TEXT PRIMARY KEY,
    whose TEXT NOT NULL,
    until INTEGER NOT NULL
);
CREATE INDEX ended_sessions_whose ON ended_sessions (whose, until);

-- +goose Down
DROP TABLE ended_sessions;
