-- +goose Up

-- What controllers said of their machines' health when they were asked last: apart from the nodes, which that does not change.
CREATE TABLE readings (
    node_uuid TEXT PRIMARY KEY REFERENCES nodes (uuid) ON DELETE CASCADE,
    doc       TEXT NOT NULL
);

-- +goose Down
DROP TABLE readings;
