"""Runs openstacksdk's own functional tests of bare metal, and then calls what they leave out.

The endpoint is the only argument; OS_CLIENT_CONFIG_FILE names it too, for those tests. The last line of the output is a JSON object: how many
tests ran, what failed with which last line, what was skipped, and which methods were never called.
"""
import functools
import inspect
import json
import logging
import os
import sys
import time
import unittest

import openstack
from openstack.baremetal.v1 import _proxy
from openstack.cloud import _baremetal

logging.disable(logging.CRITICAL)  # those tests write more than anybody reads
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.2))  # it asks every two seconds, for machines that take minutes

endpoint = sys.argv[1]
methods, called = set(), set()


def watch(owner, prefix):
    def recorded(name, f):
        @functools.wraps(f)
        def call(*args, **kwargs):
            called.add(name)
            return f(*args, **kwargs)
        return call

    for name, f in list(vars(owner).items()):
        if not name.startswith("_") and inspect.isfunction(f):
            methods.add(prefix + name)
            setattr(owner, name, recorded(prefix + name, f))


watch(_proxy.Proxy, "baremetal.")
watch(_baremetal.BaremetalCloudMixin, "")

top = os.path.dirname(os.path.dirname(openstack.__file__))
result = unittest.TestResult()
unittest.defaultTestLoader.discover(top + "/openstack/tests/functional/baremetal", top_level_dir=top).run(result)
failed = {t.id(): text.strip().splitlines()[-1] for t, text in result.failures + result.errors}


def check(what, got, want):
    if got != want:
        sys.exit(f"{what} = {got!r}, want {want!r}")


cloud = openstack.connection.Connection(auth_type="none", auth={"endpoint": endpoint}, baremetal_endpoint_override=endpoint)
api = cloud.baremetal
for left in api.nodes():  # by tests that make two nodes and remove one
    api.delete_node(left)

# The life of a machine.
check("drivers", sorted(d.name for d in api.drivers()), ["fake-hardware", "idrac", "ipmi", "manual-management", "redfish"])
node = api.create_node(driver="fake-hardware", name="sdk1", resource_class="gold", network_interface="flat")
check("state", node.provision_state, "available")
node = api.set_node_provision_state(node, "manage", wait=True, timeout=300)
node = api.set_node_provision_state(node, "inspect", wait=True, timeout=300)
node = api.set_node_provision_state(node, "provide")
api.wait_for_nodes_provision_state([node], "available", timeout=300)
check("negotiated a version", bool(api.get_node(node.id).microversion), True)
node = api.update_node(node, extra={"rack": "r1"}, instance_info={
    "image_source": "http://example.org/image.raw", "image_os_hash_algo": "sha256", "image_os_hash_value": "0" * 64})
check("extra", node.extra, {"rack": "r1"})
port = api.create_port(address="52:54:00:00:00:0A", node_id=node.id)
check("port", port.address, "52:54:00:00:00:0a")
check("ports", [p.address for p in api.ports(details=True)], ["52:54:00:00:00:0a"])
check("node's ports", [p.address for p in api.ports(node=node.id)], ["52:54:00:00:00:0a"])
api.set_node_power_state(node, "power on")
api.wait_for_node_power_state(node, "power on", timeout=300)
check("power", api.get_node(node.id).power_state, "power on")
node = api.set_node_provision_state(node, "active", config_drive={"meta_data": {"hostname": "h"}}, wait=True, timeout=300)
check("state", node.provision_state, "active")
check("validation", api.validate_node(node, required=("deploy", "power"))["deploy"].result, True)
api.set_node_maintenance(node, "looking")
check("maintenance", api.get_node(node.id).maintenance_reason, "looking")
api.unset_node_maintenance(node)
api.attach_vif_to_node(node, "39460104-4d8e-4d04-9b5e-710f35df86c3")
check("VIFs", api.list_node_vifs(node), ["39460104-4d8e-4d04-9b5e-710f35df86c3"])
check("detached", api.detach_vif_from_node(node, "39460104-4d8e-4d04-9b5e-710f35df86c3"), True)
api.add_node_trait(node, "CUSTOM_FAST")
check("traits", api.get_node(node.id).traits, ["CUSTOM_FAST"])
api.set_node_traits(node, ["CUSTOM_FAST", "CUSTOM_RED"])
api.remove_node_trait(node, "CUSTOM_FAST")
check("traits", api.get_node(node.id).traits, ["CUSTOM_RED"])
api.set_node_boot_device(node, "pxe", persistent=True)
check("boot device", cloud.session.get(endpoint + f"/v1/nodes/{node.id}/management/boot_device").json()["boot_device"], "pxe")
api.set_node_boot_mode(node, "uefi")
api.wait_for_node_reservation(node, timeout=300)
api.set_node_secure_boot(node, True)
api.wait_for_node_reservation(node, timeout=300)
check("methods", "second_method" in api.list_node_vendor_passthru(node), True)
api.call_node_vendor_passthru(node, "POST", "second_method", {"bar": "kazoo"})
check("driver's methods", api.list_driver_vendor_passthru("fake-hardware"), {})
try:
    api.call_driver_vendor_passthru("fake-hardware", "POST", "nothing")
    sys.exit("a driver has a method called nothing")
except openstack.exceptions.BadRequestException as e:
    check("message", "No handler for method" in str(e), True)
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

# The layer that Ansible's modules are made of.
made = cloud.register_machine([{"mac": "52:54:00:00:00:0b"}], wait=True, driver="fake-hardware", name="sdk2", properties={"cpus": 4})
check("registered", [m["name"] for m in cloud.list_machines()], ["sdk2"])
uuid = made["uuid"]
check("cards", [n["address"] for n in cloud.list_nics()], ["52:54:00:00:00:0b"])
check("machine's cards", [n["address"] for n in cloud.list_nics_for_machine(uuid)], ["52:54:00:00:00:0b"])
check("card", cloud.get_nic_by_mac("52:54:00:00:00:0b")["node_id"], uuid)
check("machine of a card", cloud.get_machine_by_mac("52:54:00:00:00:0b")["name"], "sdk2")
cloud.inspect_machine("sdk2", wait=True, timeout=300)
cloud.patch_machine("sdk2", [{"op": "add", "path": "/extra/a", "value": "b"}])
check("changes", cloud.update_machine("sdk2", extra={"a": "c"})["changes"], ["/extra/a"])
cloud.set_machine_maintenance_state("sdk2", True, reason="looking")
check("maintenance", cloud.get_machine("sdk2")["maintenance_reason"], "looking")
cloud.remove_machine_from_maintenance("sdk2")
cloud.set_machine_power_on("sdk2")
api.wait_for_node_power_state(uuid, "power on", timeout=300)
cloud.set_machine_power_reboot("sdk2")
cloud.wait_for_baremetal_node_lock(cloud.get_machine("sdk2"), timeout=300)
cloud.set_machine_power_off("sdk2")
api.wait_for_node_power_state(uuid, "power off", timeout=300)
cloud.set_node_instance_info(uuid, [{"op": "add", "path": "/instance_info", "value": {
    "image_source": "http://example.org/image.raw", "image_os_hash_algo": "sha256", "image_os_hash_value": "0" * 64}}])
cloud.validate_machine("sdk2")
cloud.validate_node(uuid)
cloud.activate_node(uuid, wait=True, timeout=300)
check("state", cloud.get_machine(uuid)["provision_state"], "active")
cloud.deactivate_node(uuid, wait=True, timeout=300)
cloud.purge_node_instance_info(uuid)
cloud.node_set_provision_state(uuid, "manage", wait=True)
cloud.node_set_provision_state(uuid, "provide", wait=True)
cloud.unregister_machine([{"mac": "52:54:00:00:00:0b"}], uuid)
check("machines", cloud.list_machines(), [])

print(json.dumps({"ran": result.testsRun, "failed": failed, "skipped": [t.id() for t, _ in result.skipped],
                  "methods": len(methods), "uncalled": sorted(methods - called)}))
