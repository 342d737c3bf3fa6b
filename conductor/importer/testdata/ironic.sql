-- Tables of Ironic 21.4 as far as they are read, in SQL that PostgreSQL and MariaDB both take.
CREATE TABLE alembic_version (version_num varchar(32));
INSERT INTO alembic_version VALUES ('4dbec778866e');
CREATE TABLE chassis (created_at timestamp NULL, id integer, uuid varchar(36), extra text, description varchar(255));
INSERT INTO chassis VALUES (NULL, 3, '00000000-0000-4000-8000-000000000070', '{"row": 1}', 'a rack');
CREATE TABLE nodes (id integer, uuid varchar(36), name varchar(255), driver varchar(255), driver_info text,
  properties text, extra text, instance_info text, instance_uuid varchar(36), chassis_id integer, power_state varchar(15),
  target_power_state varchar(15), provision_state varchar(15), target_provision_state varchar(15),
  provision_updated_at timestamp NULL, reservation varchar(255), maintenance boolean, maintenance_reason text,
  protected boolean, retired boolean, automated_clean boolean, owner varchar(255), lessee varchar(255),
  conductor_group varchar(255), resource_class varchar(80), network_data text, raid_config text, boot_mode varchar(16),
  console_enabled boolean, boot_interface varchar(255), clean_step text);
INSERT INTO nodes VALUES (11, '00000000-0000-4000-8000-000000000001', 'n1', 'ipmi',
  '{"ipmi_address": "192.0.2.1", "ipmi_password": "from the database"}', '{"cpus": 4}', '{}',
  '{"image_source": "http://x", "configdrive": "aGVsbG8="}', '00000000-0000-4000-8000-000000000060', 3, 'power on', NULL,
  'active', NULL, '2023-05-01 10:00:00', NULL, FALSE, NULL, TRUE, FALSE, FALSE, 'owner', 'lessee', 'east', 'large', '{}',
  NULL, 'uefi', FALSE, 'pxe', '{}');
INSERT INTO nodes VALUES (12, '00000000-0000-4000-8000-000000000002', NULL, 'ipmi', '{}', '{}', '{}', '{}', NULL, NULL,
  NULL, NULL, 'clean wait', 'available', NULL, NULL, FALSE, NULL, FALSE, FALSE, NULL, NULL, NULL, '', NULL, NULL, NULL,
  NULL, FALSE, NULL, '{}');
INSERT INTO nodes VALUES (13, '00000000-0000-4000-8000-000000000003', 'n3', 'ipmi', '{}', '{}', '{}', '{}', NULL, NULL,
  NULL, NULL, 'available', NULL, NULL, 'conductor-7', FALSE, NULL, FALSE, FALSE, NULL, NULL, NULL, '', NULL, NULL, NULL,
  NULL, FALSE, NULL, '{}');
CREATE TABLE node_traits (node_id integer, trait varchar(255));
INSERT INTO node_traits VALUES (11, 'CUSTOM_B');
INSERT INTO node_traits VALUES (11, 'CUSTOM_A');
CREATE TABLE portgroups (id integer, uuid varchar(36), name varchar(255), node_id integer, address varchar(18), extra text,
  internal_info text, standalone_ports_supported boolean, mode varchar(255), properties text);
INSERT INTO portgroups VALUES (5, '00000000-0000-4000-8000-000000000031', 'bond0', 11, NULL, '{}',
  '{"tenant_vif_port_id": "vif"}', TRUE, '802.3ad', '{}');
CREATE TABLE ports (id integer, uuid varchar(36), address varchar(18), node_id integer, extra text,
  local_link_connection text, portgroup_id integer, pxe_enabled boolean, internal_info text, physical_network varchar(64),
  is_smartnic boolean);
INSERT INTO ports VALUES (7, '00000000-0000-4000-8000-000000000021', '52:54:00:00:00:01', 11, '{}',
  '{"port_id": "e1"}', 5, FALSE, '{}', 'physnet1', FALSE);
INSERT INTO ports VALUES (8, '00000000-0000-4000-8000-000000000022', '52:54:00:00:00:02', 12, '{}', '{}', NULL, TRUE, '{}',
  NULL, FALSE);
CREATE TABLE volume_connectors (id integer, uuid varchar(36), node_id integer, type varchar(32), connector_id varchar(255),
  extra text);
INSERT INTO volume_connectors VALUES (1, '00000000-0000-4000-8000-000000000040', 11, 'iqn', 'iqn.2023.org.example:a', '{}');
CREATE TABLE volume_targets (id integer, uuid varchar(36), node_id integer, volume_type varchar(64), properties text,
  boot_index integer, volume_id varchar(36), extra text);
INSERT INTO volume_targets VALUES (1, '00000000-0000-4000-8000-000000000041', 11, 'iscsi',
  '{"auth_password": "chap", "target_lun": 1}', 0, 'v', '{}');
CREATE TABLE allocations (id integer, uuid varchar(36), name varchar(255), node_id integer, state varchar(15),
  resource_class varchar(80), traits text, candidate_nodes text, extra text);
INSERT INTO allocations VALUES (1, '00000000-0000-4000-8000-000000000060', 'a', 11, 'active', 'large', '["CUSTOM_A"]',
  '[]', '{}');
CREATE TABLE deploy_templates (id integer, uuid varchar(36), name varchar(255), extra text);
INSERT INTO deploy_templates VALUES (2, '00000000-0000-4000-8000-000000000080', 'CUSTOM_A', '{}');
CREATE TABLE deploy_template_steps (id integer, deploy_template_id integer, interface varchar(255), step varchar(255),
  args text, priority integer);
INSERT INTO deploy_template_steps VALUES (1, 2, 'bios', 'apply_configuration',
  '{"settings": [{"name": "hyper", "value": "on"}]}', 150);
CREATE TABLE node_history (created_at timestamp NULL, id integer, uuid varchar(36), conductor varchar(255),
  event_type varchar(255), severity varchar(255), event text, "user" varchar(32), node_id integer);
INSERT INTO node_history VALUES ('2023-05-01 09:00:00', 1, '00000000-0000-4000-8000-000000000090', 'conductor-7',
  'provisioning', 'ERROR', 'the first', 'admin', 11);
INSERT INTO node_history VALUES ('2023-05-01 10:00:00', 2, '00000000-0000-4000-8000-000000000091', 'conductor-7',
  'provisioning', 'INFO', 'the second', NULL, 11);
