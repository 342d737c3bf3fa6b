// What can be done with a machine: for whom, in which state, by which request, and by which command of a shell.
import { access, ask, may } from './api';
import type { Row } from './live';
import { quote } from './format';

export interface Action {
  id: string;
  title: string;
  what: string; // a sentence about what will happen
  rule: string;
  danger?: boolean; // data or work is lost
  reason?: boolean; // people may say why
  fits: (n: Row) => boolean; // its state allows it
  send: (n: Row, reason: string) => Promise<unknown>;
  ingot: ((name: string, reason: string) => string) | null;
  openstack: (name: string, reason: string) => string | null;
}

const at = (n: Row) => `/v1/nodes/${n.uuid}`;

function verb(id: string, target: string, title: string, what: string, more: Partial<Action> = {}): Action {
  return {
    id,
    title,
    what,
    rule: 'node:set_provision_state',
    fits: (n) => (access.value?.verbs[n.provision_state] ?? []).includes(target),
    send: (n) => ask(`${at(n)}/states/provision`, { method: 'PUT', body: { target } }),
    ingot: (name) => `ingot node ${id} ${quote(name)}`,
    openstack: (name) => `openstack baremetal node ${id} ${quote(name)}`,
    ...more,
  };
}

function power(id: string, target: string, title: string, what: string, fits: (n: Row) => boolean, danger = false): Action {
  return {
    id: 'power-' + id,
    title,
    what,
    danger,
    rule: 'node:set_power_state',
    fits: (n) => fits(n) && !n.target_power_state,
    send: (n) => ask(`${at(n)}/states/power`, { method: 'PUT', body: { target } }),
    ingot: (name) => `ingot node power ${id} ${quote(name)}`,
    openstack: (name) => `openstack baremetal node ${id === 'reboot' ? 'reboot' : 'power ' + id} ${quote(name)}`,
  };
}

export const actions: Action[] = [
  verb('manage', 'manage', 'Manage', 'The credentials of its controller are checked; after a failure it is taken back.'),
  verb('inspect', 'inspect', 'Inspect', 'It is started from the network, and its hardware is looked at.'),
  verb('provide', 'provide', 'Provide', 'It is cleaned as the configuration says, which can erase disks, and becomes available.', {
    danger: true,
  }),
  verb('adopt', 'adopt', 'Adopt', 'It is taken over as it is: its system goes on.'),
  verb('unrescue', 'unrescue', 'End rescue', 'It starts its own system again.'),
  verb('unhold', 'unhold', 'Go on', 'The step that holds it ends, and its work goes on.', {
    ingot: null,
  }),
  verb('abort', 'abort', 'Abort', 'What it waits in is given up, and ends as a failure.', { danger: true }),
  verb('undeploy', 'deleted', 'Undeploy', 'It is turned off, its instance is deleted, and its disks are cleaned.', {
    danger: true,
    fits: (n) => !n.protected && (access.value?.verbs[n.provision_state] ?? []).includes('deleted'),
    openstack: (name) => `openstack baremetal node undeploy ${quote(name)}`,
  }),
  power('on', 'power on', 'Power on', 'It is turned on.', (n) => n.power_state !== 'power on'),
  power('off', 'power off', 'Power off', 'Its power is cut.', (n) => n.power_state === 'power on', true),
  {
    id: 'power-soft-off',
    title: 'Shut down',
    what: 'Its operating system is asked to end and turn it off.',
    danger: true,
    rule: 'node:set_power_state',
    fits: (n) => n.power_state === 'power on' && !n.target_power_state,
    send: (n) => ask(`${at(n)}/states/power`, { method: 'PUT', body: { target: 'soft power off' } }),
    ingot: (name) => `ingot node power off ${quote(name)} --soft`,
    openstack: (name) => `openstack baremetal node power off --soft ${quote(name)}`,
  },
  power('reboot', 'rebooting', 'Reboot', 'Its power is cut and turned on again.', (n) => n.power_state === 'power on', true),
  {
    id: 'maintenance-on',
    title: 'Start maintenance',
    what: 'Nothing is done with it until maintenance ends.',
    rule: 'node:set_maintenance',
    reason: true,
    fits: (n) => !n.maintenance,
    send: (n, reason) => ask(`${at(n)}/maintenance`, { method: 'PUT', body: reason ? { reason } : {} }),
    ingot: (name, reason) => `ingot node maintenance on ${quote(name)}` + (reason && ` --reason ${quote(reason)}`),
    openstack: (name, reason) =>
      `openstack baremetal node maintenance set ${quote(name)}` + (reason && ` --reason ${quote(reason)}`),
  },
  {
    id: 'maintenance-off',
    title: 'End maintenance',
    what: 'It takes part again.',
    rule: 'node:set_maintenance',
    fits: (n) => n.maintenance,
    send: (n) => ask(`${at(n)}/maintenance`, { method: 'DELETE' }),
    ingot: (name) => `ingot node maintenance off ${quote(name)}`,
    openstack: (name) => `openstack baremetal node maintenance unset ${quote(name)}`,
  },
  {
    id: 'delete',
    title: 'Delete',
    what: 'Its record is deleted, with its ports and its history. Nothing is done to the machine.',
    danger: true,
    rule: 'node:delete',
    fits: (n) => ['enroll', 'manageable', 'available', 'adopt failed'].includes(n.provision_state) && !n.protected,
    send: (n) => ask(at(n), { method: 'DELETE' }),
    ingot: (name) => `ingot node delete ${quote(name)}`,
    openstack: (name) => `openstack baremetal node delete ${quote(name)}`,
  },
];

// offered are the actions that the user's role and the machine's state allow.
export const offered = (n: Row): Action[] => actions.filter((a) => may(a.rule, n) && a.fits(n));

export const nameOf = (n: { name?: string | null; uuid: string }): string => n.name || n.uuid;
