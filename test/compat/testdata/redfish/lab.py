"""The controller and its machine, what was asked of it, and what sushy met there.

A word of met stands for a behaviour of controllers that Ironic or sushy knows; sushy_test.go has the list.
"""
import json
import time
from urllib import parse

import sushy

POST = "UnableToModifyDuringSystemPOST"
UEFI = sushy.BOOT_SOURCE_MODE_UEFI


class Lab:
    def __init__(self, address, authenticator, ca):
        self.root = sushy.Sushy(address, auth=authenticator, verify=ca)
        self.conn = self.root._conn
        self.sent = []  # method, path, If-Match, body, status, and the error's text
        self.conn._session.hooks["response"].append(self._note)
        self.met = set()
        self.found = {"power": [], "boot": []}
        self.starts = []  # why the machine started, in order
        self.system = self._machine()
        self.managers = self._managers()

    def _note(self, answer, **_):
        request = answer.request
        self.sent.append((request.method, parse.urlsplit(request.url).path, request.headers.get("If-Match"),
                          json.loads(request.body) if request.body else None, answer.status_code,
                          answer.text if answer.status_code >= 400 else ""))

    def _machine(self):
        """The only system that can be booted: newer controllers show a part of the machine as one, too."""
        collection = self.root.get_system_collection()
        if len(collection.members_identities) == 1:
            return self.root.get_system()
        for path in collection.members_identities:
            if "Boot" in self.conn.get(path).json():
                machine = self.root.get_system(path)
            else:
                self.met.add("phantom")
        return machine

    def _managers(self):
        try:
            return self.system.managers
        except sushy.exceptions.MissingAttributeError:
            self.met.add("no_managed_by")
            return self.root.get_manager_collection().get_members()

    def power(self, action, want, why=None):
        for _ in range(100):
            try:
                self.system.reset_system(action)
                break
            except sushy.exceptions.HTTPError as e:
                # Ironic sends it again: see quirk row idrac10-on-after-off.
                if "ActionParameterValueConflict" not in str(e):
                    raise
                self.met.add("conflict")
                time.sleep(0.1)
        if action in (sushy.RESET_TYPE_ON, sushy.RESET_TYPE_FORCE_RESTART):
            self.starts.append(why or "")
        self.system.refresh(force=True)
        self.found["power"].append([action.name, self.system.power_state.name])
        if self.system.power_state != want:
            raise SystemExit("%s: the power is %s" % (action, self.system.power_state))

    def on(self, why=None):
        self.power(sushy.RESET_TYPE_ON, sushy.SYSTEM_POWER_STATE_ON, why)

    def restart(self):
        self.power(sushy.RESET_TYPE_FORCE_RESTART, sushy.SYSTEM_POWER_STATE_ON)

    def off(self):
        soft = sushy.RESET_TYPE_GRACEFUL_SHUTDOWN
        if soft not in self.system.get_allowed_reset_system_values():
            soft = sushy.RESET_TYPE_PUSH_POWER_BUTTON
        self.power(soft, sushy.SYSTEM_POWER_STATE_OFF)

    def tagged(self, call, path, change):
        """Calls sushy. Where the controller wants If-Match, newer versions of sushy send it."""
        try:
            call()
        except sushy.exceptions.HTTPError as e:
            if e.status_code != 428:
                raise
            self.met.add("if_match_required")
            self.conn.patch(path, data=change, etag=self.conn.get(path).headers.get("ETag"))

    def etags(self):
        """Looks through what was sent for ETags that were declined, and what was taken after that."""
        changes = [s for s in self.sent if s[0] == "PATCH"]
        for (_, path, tag, _, status, _), (_, next_path, next_tag, _, next_status, _) in zip(changes, changes[1:]):
            if status == 412 and tag and path == next_path and next_status < 300:
                self.met.add("etag_refused" if next_tag is None else "weak_etag_refused")
