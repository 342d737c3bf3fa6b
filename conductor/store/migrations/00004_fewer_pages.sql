-- +goose Up

-- A write costs as much as the pages that it touches. seq need not grow for ever, only be larger than that of all rows there are, so
-- AUTOINCREMENT, which keeps a table of its own, is left out; and indexes hold only the rows that somebody looks for with them.
-- Foreign keys are not looked at while migrations run, so that dropping a table takes nothing with it.
CREATE TABLE nodes_new (
    seq             INTEGER PRIMARY KEY,
    uuid            TEXT    NOT NULL UNIQUE,
    version         BIGINT  NOT NULL,
    name            TEXT    UNIQUE,
    instance_uuid   TEXT,
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
INSERT INTO nodes_new (seq, uuid, version, name, instance_uuid, instance_name, driver, provision_state, target_provision_state,
    provision_updated_at, power_state, target_power_state, reservation, maintenance, fault, retired, protected,
    resource_class, conductor_group, conductor, owner, lessee, shard, parent_node, chassis_uuid, description, busy,
    created_at, updated_at, doc, sealed)
    SELECT seq, uuid, version, name, instance_uuid, instance_name, driver, provision_state, target_provision_state,
    provision_updated_at, power_state, target_power_state, reservation, maintenance, fault, retired, protected,
    resource_class, conductor_group, conductor, owner, lessee, shard, parent_node, chassis_uuid, description, busy,
    created_at, updated_at, doc, sealed
    FROM nodes ORDER BY seq;
DROP TABLE nodes;
ALTER TABLE nodes_new RENAME TO nodes;
CREATE UNIQUE INDEX nodes_instance ON nodes (instance_uuid) WHERE instance_uuid IS NOT NULL;
CREATE INDEX nodes_state ON nodes (provision_state);
CREATE INDEX nodes_busy ON nodes (busy) WHERE busy = 1;
CREATE INDEX nodes_parent ON nodes (parent_node) WHERE parent_node <> '';
CREATE INDEX nodes_chassis ON nodes (chassis_uuid) WHERE chassis_uuid <> '';

CREATE TABLE ports_new (
    seq              INTEGER PRIMARY KEY,
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
INSERT INTO ports_new (seq, uuid, node_uuid, address, name, pxe_enabled, physical_network, portgroup_uuid, created_at, updated_at, doc)
    SELECT seq, uuid, node_uuid, address, name, pxe_enabled, physical_network, portgroup_uuid, created_at, updated_at, doc
    FROM ports ORDER BY seq;
DROP TABLE ports;
ALTER TABLE ports_new RENAME TO ports;
CREATE INDEX ports_node ON ports (node_uuid);
CREATE INDEX ports_group ON ports (portgroup_uuid) WHERE portgroup_uuid <> '';

CREATE TABLE history_new (
    seq       INTEGER PRIMARY KEY,
    uuid      TEXT    NOT NULL UNIQUE,
    node_uuid TEXT    NOT NULL,
    node_name TEXT    NOT NULL,
    at        BIGINT  NOT NULL,
    type      TEXT    NOT NULL,
    severity  TEXT    NOT NULL,
    event     TEXT    NOT NULL,
    conductor TEXT    NOT NULL,
    user_name TEXT    NOT NULL,
    project   TEXT    NOT NULL,
    owner     TEXT    NOT NULL,
    lessee    TEXT    NOT NULL,
    gone      INTEGER NOT NULL
);
INSERT INTO history_new (seq, uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone)
    SELECT seq, uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone
    FROM history ORDER BY seq;
DROP TABLE history;
ALTER TABLE history_new RENAME TO history;
CREATE INDEX history_node ON history (node_uuid, gone, seq);
CREATE INDEX history_at ON history (at);
CREATE INDEX history_user ON history (user_name, seq);

CREATE TABLE marks_new (
    seq       INTEGER PRIMARY KEY,
    node_uuid TEXT    NOT NULL REFERENCES nodes (uuid) ON DELETE CASCADE,
    job_id    TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    at        BIGINT  NOT NULL,
    detail    TEXT    NOT NULL
);
INSERT INTO marks_new (seq, node_uuid, job_id, name, at, detail)
    SELECT seq, node_uuid, job_id, name, at, detail
    FROM marks ORDER BY seq;
DROP TABLE marks;
ALTER TABLE marks_new RENAME TO marks;
CREATE INDEX marks_node ON marks (node_uuid, job_id, seq);

-- +goose Down

-- The tables stay: what comes before can work with them.
DROP INDEX nodes_parent;
DROP INDEX nodes_chassis;
DROP INDEX ports_group;
