package ask

// argument is a right value of a query's argument.
func (m *maker) argument(name string) string {
	switch name {
	case "limit":
		return one(m, "1", "1", "2", "1000")
	case "marker":
		return one(m, m.node, m.ids["port"], m.ids["portgroup"], m.ids["chassis"], m.ids["target"])
	case "sort_key":
		return one(m, "uuid", "name", "created_at", "address", "provision_state", "driver", "owner", "id",
			"description")
	case "sort_dir":
		return one(m, "asc", "desc")
	case "fields":
		return one(m, "uuid", "uuid,name", "name", "uuid,uuid", "extra", "uuid,address", "uuid,links", "created_at",
			"driver,traits", "hostname,alive", "uuid,description", "uuid,shard", "properties", "uuid,node_uuid",
			",uuid,",
			"name,hosts", "steps")
	case "detail", "associated", "maintenance", "retired", "sharded", "persistent", "enabled", "reset_interfaces",
		"disable_ramdisk":
		return one(m, "true", "True", "1", "yes", "false", "0", "no", "on", " t ")
	case "node_uuid", "instance_uuid":
		return m.node
	case "chassis_uuid":
		return m.ids["chassis"]
	case "node", "node_ident", "parent_node":
		return one(m, m.node, m.name)
	case "portgroup":
		return one(m, m.ids["portgroup"], m.names["portgroup"])
	case "address":
		return one(m, m.address(), "52:54:00:00:00:01")
	case "provision_state":
		return one(m, "enroll", "available", "active", "manageable")
	case "driver":
		return one(m, "fake-hardware", "ipmi")
	case "type":
		return one(m, "dynamic", "classic")
	case "fault":
		return one(m, "power failure", "clean failure")
	case "state":
		return one(m, "active", "error", "allocating")
	case "target":
		return one(m, "power on", "manage")
	case "timeout":
		return "10"
	case "boot_device":
		return "pxe"
	case "method":
		return one(m, "first_method", "third_method_sync")
	case "addresses":
		return m.address()
	}
	return one(m, "x", "class", "them", "s1", m.name, "12")
}

// wrongArgument is a value that an argument does not take, or that nothing has.
func (m *maker) wrongArgument(name string) string {
	switch name {
	case "limit":
		return one(m, "0", "-1", "abc", "1.5", "")
	case "marker":
		return one(m, absent, "x", m.name, "a b")
	case "sort_key":
		return one(m, "extra", "bogus", "NAME", "links", "uuid,name", "")
	case "sort_dir":
		return one(m, "ASC", "x", "")
	case "fields":
		return one(m, "bogus", "UUID", "uuid,bogus", "uuid name", "")
	case "detail", "associated", "maintenance", "retired", "sharded", "persistent", "enabled", "reset_interfaces",
		"disable_ramdisk":
		return one(m, "maybe", "2", "", "None")
	case "node_uuid", "instance_uuid", "chassis_uuid":
		return one(m, absent, "x", m.name)
	case "node", "node_ident", "portgroup", "parent_node":
		return one(m, "nobody", absent, "a b")
	case "address", "addresses":
		return one(m, "x", "52:54:00:00:00", "52-54-00-00-00-01")
	case "provision_state":
		return one(m, "bogus", "ACTIVE", "")
	case "type", "fault", "state":
		return one(m, "x", "", "ACTIVE")
	}
	return one(m, "", "a b", "ü", absent)
}
