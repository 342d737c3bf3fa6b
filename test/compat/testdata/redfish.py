"""Drives a Redfish service with sushy, Ironic's own client, as Ironic's interfaces do, and prints what it found.

Arguments: address, user, password, file with the certificate, "session" or "basic", URL of a BIOS.
"""
import json
import sys
import time

import sushy
from sushy import auth

address, user, password, ca, kind, image = sys.argv[1:]
classes = {"session": auth.SessionAuth, "basic": auth.BasicAuth, "auto": auth.SessionOrBasicAuth}
authenticator = classes[kind](username=user, password=password)
root = sushy.Sushy(address, auth=authenticator, verify=ca)
system = root.get_system()
found = {"uuid": system.uuid, "manufacturer": system.manufacturer,
         "power": [], "boot": [], "macs": sorted(system.ethernet_interfaces.summary)}


def power(action, want):
    for _ in range(100):
        try:
            system.reset_system(action)
            break
        except sushy.exceptions.HTTPError as e:
            # Newer versions of sushy send it again themselves: see quirk row idrac10-on-after-off.
            if "ActionParameterValueConflict" not in str(e):
                raise
            found["conflict"] = True
            time.sleep(0.1)
    system.refresh(force=True)
    found["power"].append([action.name, system.power_state.name])
    if system.power_state != want:
        raise SystemExit("%s: the power is %s" % (action, system.power_state))


power(sushy.RESET_TYPE_ON, sushy.SYSTEM_POWER_STATE_ON)
power(sushy.RESET_TYPE_FORCE_RESTART, sushy.SYSTEM_POWER_STATE_ON)
if sushy.RESET_TYPE_NMI in system.get_allowed_reset_system_values():
    power(sushy.RESET_TYPE_NMI, sushy.SYSTEM_POWER_STATE_ON)
power(sushy.RESET_TYPE_GRACEFUL_SHUTDOWN, sushy.SYSTEM_POWER_STATE_OFF)

for target in (sushy.BOOT_SOURCE_TARGET_PXE, sushy.BOOT_SOURCE_TARGET_HDD, sushy.BOOT_SOURCE_TARGET_CD):
    for enabled in (sushy.BOOT_SOURCE_ENABLED_ONCE, sushy.BOOT_SOURCE_ENABLED_CONTINUOUS):
        try:
            system.set_system_boot_options(target, enabled=enabled, mode=sushy.BOOT_SOURCE_MODE_UEFI)
        except sushy.exceptions.BadRequestError as e:
            if enabled != sushy.BOOT_SOURCE_ENABLED_CONTINUOUS or "BootSourceOverrideEnabled" not in str(e):
                raise
            found["once_only"] = True
            continue
        system.refresh(force=True)
        found["boot"].append([system.boot["target"].name, system.boot["enabled"].name, system.boot["mode"].name])
        # sushy itself asks Supermicro's controllers for their USB drive: see quirk row supermicro-usb-cd.
        targets = [target] + [sushy.BOOT_SOURCE_TARGET_USB_CD] * (target == sushy.BOOT_SOURCE_TARGET_CD and
                                                                  system.manufacturer == "Supermicro")
        if system.boot["target"] not in targets or system.boot["enabled"] != enabled:
            raise SystemExit("the boot choice is %s, %s" % (system.boot["target"], system.boot["enabled"]))

found["processors"] = system.processors.summary.count
found["memory_gib"] = system.memory_summary.size_gib
found["disks"] = system.storage.drives_sizes_bytes
for state in (sushy.INDICATOR_LED_LIT, sushy.INDICATOR_LED_OFF):
    if system.indicator_led is not None:
        system.set_indicator_led(state)
        system.refresh(force=True)
        if system.indicator_led != state:
            raise SystemExit("the lamp is %s" % system.indicator_led)

bios = system.bios
bios.set_attributes({"NumLock": "Disabled"})
power(sushy.RESET_TYPE_ON, sushy.SYSTEM_POWER_STATE_ON)
bios.refresh(force=True)
if bios.attributes["NumLock"] != "Disabled":
    raise SystemExit("the BIOS settings are %s" % bios.attributes)
# Debian's package lacks the data with which bios.get_attribute_registry begins: this is the rest of it.
found["bios"] = [a.name for file in root._get_registry_collection().get_members()
                 if file.registry == bios._attribute_registry
                 for a in file.get_attribute_registry("en", None).registry_entries.attributes
                 if a.attribute_type == "Integer"]

system.secure_boot.set_enabled(True)
system.secure_boot.refresh(force=True)
found["secure_boot"] = system.secure_boot.enabled
manager = system.managers[0]
found["firmware"] = manager.firmware_version

monitor = root.get_update_service().simple_update(image)
try:
    for _ in range(600):
        state = monitor.get_task().task_state
        if state not in (sushy.TASK_STATE_NEW, sushy.TASK_STATE_RUNNING):
            break
        time.sleep(0.05)
except sushy.exceptions.ResourceNotFoundError:
    state = None  # deleted by the controller: Ironic restarts the machine then, too
system.reset_system(sushy.RESET_TYPE_FORCE_RESTART)
for _ in range(600):
    system.refresh(force=True)
    found["bios_version"] = system.bios_version
    if system.bios_version.endswith("99.1"):
        break
    time.sleep(0.05)

service = root.get_event_service()
subscription = service.subscriptions.create({"Destination": "https://192.0.2.1/events", "Protocol": "Redfish",
                                             "Context": "sushy", "EventTypes": ["Alert"]})
found["subscription"] = [subscription.destination, subscription.context]
found["kinds"] = len(service.get_event_types_for_subscription())
subscription.delete()
service.subscriptions.refresh(force=True)
if service.subscriptions.members_identities:
    raise SystemExit("a subscription is left")

try:
    system.set_system_boot_options(sushy.BOOT_SOURCE_TARGET_PXE, enabled="nonsense")
except (sushy.exceptions.InvalidParameterValueError, sushy.exceptions.BadRequestError) as e:
    found["refused"] = True
try:
    root.get_system("/redfish/v1/Systems/none")
except sushy.exceptions.ResourceNotFoundError:
    found["missing"] = True
try:
    sushy.Sushy(address, auth=auth.BasicAuth(username=user, password="wrong"), verify=ca).get_system()
except sushy.exceptions.AccessError:
    found["denied"] = True
if kind != "basic":
    authenticator.close()
print(json.dumps(found))
