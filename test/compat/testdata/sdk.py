"""Walks a machine through its life with openstacksdk, which is what Nova and Ansible use. The endpoint is the only argument."""
import sys

import openstack

endpoint = sys.argv[1]
cloud = openstack.connection.Connection(auth_type="none", auth={"endpoint": endpoint}, baremetal_endpoint_override=endpoint)
api = cloud.baremetal


def check(what, got, want):
    if got != want:
        sys.exit(f"{what} = {got!r}, want {want!r}")


check("drivers", sorted(d.name for d in api.drivers()), ["fake-hardware", "ipmi", "manual-management"])
node = api.create_node(driver="fake-hardware", name="sdk1", resource_class="gold")
check("state", node.provision_state, "available")  # the SDK asks for an old version here, in which nodes begin as available
node = api.set_node_provision_state(node, "manage", wait=True, timeout=300)
node = api.set_node_provision_state(node, "inspect", wait=True, timeout=300)
node = api.set_node_provision_state(node, "provide", wait=True, timeout=300)
check("state", node.provision_state, "available")
check("negotiated a version", bool(api.get_node(node.id).microversion), True)

node = api.update_node(node, extra={"rack": "r1"}, instance_info={
    "image_source": "http://example.org/image.raw", "image_os_hash_algo": "sha256", "image_os_hash_value": "0" * 64})
check("extra", node.extra, {"rack": "r1"})
port = api.create_port(address="52:54:00:00:00:0A", node_id=node.id)
check("port", port.address, "52:54:00:00:00:0a")
check("ports", [p.address for p in api.ports(details=True)], ["52:54:00:00:00:0a"])
check("node's ports", [p.address for p in api.ports(node=node.id)], ["52:54:00:00:00:0a"])

api.set_node_power_state(node, "power on", wait=True, timeout=300)
check("power", api.get_node(node.id).power_state, "power on")
node = api.set_node_provision_state(node, "active", config_drive={"meta_data": {"hostname": "h"}}, wait=True, timeout=300)
check("state", node.provision_state, "active")
check("validation", api.validate_node(node, required=("deploy", "power"))["deploy"].result, True)
api.set_node_maintenance(node, "looking")
check("maintenance", api.get_node(node.id).maintenance_reason, "looking")
api.unset_node_maintenance(node)
api.attach_vif_to_node(node, "39460104-4d8e-4d04-9b5e-710f35df86c3")
api.list_node_vifs(node)
api.add_node_trait(node, "CUSTOM_FAST")
check("traits", api.get_node(node.id).traits, ["CUSTOM_FAST"])
node = api.set_node_provision_state(node, "deleted", wait=True, timeout=300)
check("nodes", [n.name for n in api.nodes(details=True, provision_state="available")], ["sdk1"])
check("port groups", list(api.port_groups()), [])
api.delete_port(port)
api.delete_node(node)
check("nodes", list(api.nodes()), [])
try:
    api.get_node("sdk1")
    sys.exit("a deleted node is still there")
except openstack.exceptions.ResourceNotFound as e:
    check("message", "could not be found" in str(e), True)
