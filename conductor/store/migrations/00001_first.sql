-- +goose Up

-- A node's truth is its doc (JSON) together with its sealed parts; the other columns are copies of what is searched, sorted or
-- unique. Times are microseconds since 1970, zero for "never".
CREATE TABLE nodes (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid            TEXT    NOT NULL UNIQUE,
    version         BIGINT  NOT NULL,
    name            TEXT    UNIQUE,
    instance_uuid   TEXT    UNIQUE,
    instance_name   TEXT    NOT NULL,
    driver          TEXT    NOT NULL,
    provision_state TEXT    NOT NULL,
    target_provision_state TEXT NOT NULL,
    provision_updated_at BIGINT NOT NULL,
    power_state     TEXT    NOT NULL,
    target_power_state TEXT NOT NULL,
    reservation     TEXT    NOT NULL,
    maintenance     INTEGER NOT NULL,
    fault           TEXT    NOT NULL,
    retired         INTEGER NOT NULL,
    protected       INTEGER NOT NULL,
    resource_class  TEXT    NOT NULL,
    conductor_group TEXT    NOT NULL,
    conductor       TEXT    NOT NULL,
    owner           TEXT    NOT NULL,
    lessee          TEXT    NOT NULL,
    shard           TEXT    NOT NULL,
    parent_node     TEXT    NOT NULL,
    chassis_uuid    TEXT    NOT NULL,
    description     TEXT    NOT NULL,
    busy            INTEGER NOT NULL, -- the engine has something to do or to wait for
    created_at      BIGINT  NOT NULL,
    updated_at      BIGINT  NOT NULL,
    doc             TEXT    NOT NULL,
    sealed          BLOB    NOT NULL  -- driver_info, instance_info, job
);
CREATE INDEX nodes_state ON nodes (provision_state);
CREATE INDEX nodes_busy ON nodes (busy) WHERE busy = 1;

-- Config drives can be megabytes: apart from the rest, so that a change of state does not write them again.
CREATE TABLE config_drives (
    node_uuid TEXT PRIMARY KEY REFERENCES nodes (uuid) ON DELETE CASCADE,
    sealed    BLOB NOT NULL
);

CREATE TABLE node_guids (
    guid      TEXT NOT NULL,
    node_uuid TEXT NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    PRIMARY KEY (guid, node_uuid)
);
CREATE INDEX node_guids_node ON node_guids (node_uuid);

CREATE TABLE ports (
    seq              INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid             TEXT    NOT NULL UNIQUE,
    node_uuid        TEXT    NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    address          TEXT    NOT NULL UNIQUE,
    name             TEXT    UNIQUE,
    pxe_enabled      INTEGER NOT NULL,
    physical_network TEXT    NOT NULL,
    portgroup_uuid   TEXT    NOT NULL,
    created_at       BIGINT  NOT NULL,
    updated_at       BIGINT  NOT NULL,
    doc              TEXT    NOT NULL
);
CREATE INDEX ports_node ON ports (node_uuid);

CREATE TABLE history (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid      TEXT    NOT NULL UNIQUE,
    node_uuid TEXT    NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    at        BIGINT  NOT NULL,
    type      TEXT    NOT NULL,
    severity  TEXT    NOT NULL,
    event     TEXT    NOT NULL,
    conductor TEXT    NOT NULL,
    user_name TEXT    NOT NULL
);
CREATE INDEX history_node ON history (node_uuid, seq);

CREATE TABLE marks (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    node_uuid TEXT    NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    job_id    TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    at        BIGINT  NOT NULL,
    detail    TEXT    NOT NULL
);
CREATE INDEX marks_node ON marks (node_uuid, job_id, seq);

CREATE TABLE inventories (
    node_uuid TEXT   PRIMARY KEY REFERENCES nodes (uuid) ON DELETE CASCADE,
    at        BIGINT NOT NULL,
    doc       TEXT   NOT NULL
);

CREATE TABLE leases (
    mac        TEXT   PRIMARY KEY,
    ip         TEXT   NOT NULL UNIQUE,
    node_uuid  TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);

-- One sealed row tells whether the key at hand is the one the secrets were sealed with.
CREATE TABLE key_check (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    sealed BLOB NOT NULL
);

-- +goose Down
DROP TABLE key_check;
DROP TABLE leases;
DROP TABLE inventories;
DROP TABLE marks;
DROP TABLE history;
DROP TABLE ports;
DROP TABLE node_guids;
DROP TABLE config_drives;
DROP TABLE nodes;
