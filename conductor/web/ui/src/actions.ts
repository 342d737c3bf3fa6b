// What can be done with a machine: for whom, in which state, by which request, and by which command of a shell.
import { access, ask, may } from './api';
import type { Row } from './machine';
import { quote } from './format';

// Given is what people fill in, by the IDs of fields.
export type Given = Record<string, string>;

// Question is a field of an action's dialog.
export interface Question {
  id: string;
  label: string;
  hint?: string;
  options?: [string, string][]; // values and titles; without, it is a line
  secret?: boolean;
  fault?: (text: string) => string; // what is wrong with it; ''
}

export interface Action {
  id: string;
  title: string;
  what: string; // a sentence about what will happen
  rule: string;
  danger?: boolean; // data or work is lost
  asks?: Question[];
  fits: (n: Row) => boolean; // its state allows it
  send: (n: Row, g: Given) => Promise<unknown>;
  ingot: (name: string, g: Given) => string;
  openstack: (name: string, g: Given) => string | null;
}

// faultOf is the first thing that is wrong with what was filled in.
export function faultOf(a: Action, g: Given): string {
  for (const q of a.asks ?? []) {
    const fault = q.fault?.(g[q.id] ?? '');
    if (fault) return fault;
  }
  return '';
}

// given is what is filled in at first.
export const given = (a: Action): Given => Object.fromEntries((a.asks ?? []).map((q) => [q.id, q.options?.[0][0] ?? '']));

const at = (n: Row) => `/v1/nodes/${n.uuid}`;

// takes makes the condition that a machine's state takes a verb.
export const takes = (target: string) => (n: Row) => (access.value?.verbs[n.provision_state] ?? []).includes(target);

const needed = (what: string) => (text: string) => (text.trim() ? '' : what);

function verb(id: string, target: string, title: string, what: string, more: Partial<Action> = {}): Action {
  return {
    id,
    title,
    what,
    rule: 'node:set_provision_state',
    fits: takes(target),
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

const quarantined = 'quarantined'; // the fault of a machine in quarantine
const inUse = /^(active|deploying|wait call-back|deploy (hold|failed)|error|rescu|unrescu|servic)/;

export const actions: Action[] = [
  verb('manage', 'manage', 'Manage', 'The credentials of its controller are checked; after a failure it is taken back.'),
  verb('inspect', 'inspect', 'Inspect', 'It is started from the network, and its hardware is looked at.'),
  verb('provide', 'provide', 'Provide', 'It is cleaned as the configuration says, which can erase disks, and becomes available.', {
    danger: true,
  }),
  verb('adopt', 'adopt', 'Adopt', 'It is taken over as it is: its system goes on.'),
  verb('rescue', 'rescue', 'Rescue', 'It starts a rescue system instead of its own, in which one logs in as user rescue with this password.', {
    asks: [{ id: 'password', label: 'Password', hint: 'For the rescue system; at least 8 characters.', secret: true, fault: (t) => (t.length >= 8 ? '' : 'Give a password of at least 8 characters.') }],
    send: (n, g) => ask(`${at(n)}/states/provision`, { method: 'PUT', body: { target: 'rescue', rescue_password: g.password } }),
    ingot: (name) => `ingot node rescue ${quote(name)} --password-file FILE`,
    openstack: (name) => `openstack baremetal node rescue ${quote(name)} --rescue-password PASSWORD`,
  }),
  verb('unrescue', 'unrescue', 'End rescue', 'It starts its own system again.'),
  verb('unhold', 'unhold', 'Go on', 'The step that holds it ends, and its work goes on.'),
  verb('abort', 'abort', 'Abort', 'What it waits in is given up, and ends as a failure.', { danger: true }),
  verb('undeploy', 'deleted', 'Undeploy', 'It is turned off, its instance is deleted, and its disks are cleaned.', {
    danger: true,
    fits: (n) => !n.protected && takes('deleted')(n),
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
    id: 'boot-device',
    title: 'Boot device',
    what: 'Its controller is told what to start from.',
    rule: 'node:set_boot_device',
    asks: [
      { id: 'device', label: 'Start from', options: ['pxe', 'disk', 'cdrom', 'bios', 'safe'].map((d) => [d, d]) },
      {
        id: 'persistent',
        label: 'How long',
        options: [
          ['', 'at the next start'],
          ['1', 'from now on'],
        ],
      },
    ],
    fits: (n) => !!n.power_state && !n.target_power_state,
    send: (n, g) =>
      ask(`${at(n)}/management/boot_device`, { method: 'PUT', body: { boot_device: g.device, persistent: !!g.persistent } }),
    ingot: (name, g) => `ingot node boot-device ${quote(name)} ${g.device}` + (g.persistent && ' --persistent'),
    openstack: (name, g) => `openstack baremetal node boot device set ${quote(name)} ${g.device}` + (g.persistent && ' --persistent'),
  },
  {
    id: 'maintenance-on',
    title: 'Start maintenance',
    what: 'Nothing is done with it until maintenance ends.',
    rule: 'node:set_maintenance',
    asks: [{ id: 'reason', label: 'Reason', hint: 'May be empty.' }],
    fits: (n) => !n.maintenance,
    send: (n, g) => ask(`${at(n)}/maintenance`, { method: 'PUT', body: g.reason ? { reason: g.reason } : {} }),
    ingot: (name, g) => `ingot node maintenance on ${quote(name)}` + (g.reason && ` --reason ${quote(g.reason)}`),
    openstack: (name, g) => `openstack baremetal node maintenance set ${quote(name)}` + (g.reason && ` --reason ${quote(g.reason)}`),
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
    id: 'quarantine',
    title: 'Quarantine',
    what: 'It is marked as broken. Its instance goes on; after that it does not become available.',
    rule: 'ingot:node:quarantine',
    asks: [{ id: 'reason', label: 'Reason', fault: needed('Say what is wrong with the machine.') }],
    fits: (n) => n.fault !== quarantined && inUse.test(n.provision_state),
    send: (n, g) => ask(`/ingot${at(n)}/quarantine`, { method: 'POST', body: { reason: g.reason } }),
    ingot: (name, g) => `ingot node quarantine ${quote(name)} --reason ${quote(g.reason || 'TEXT')}`,
    openstack: () => null,
  },
  {
    id: 'unquarantine',
    title: 'End quarantine',
    what: 'It is no longer marked as broken.',
    rule: 'ingot:node:quarantine',
    fits: (n) => n.fault === quarantined,
    send: (n) => ask(`/ingot${at(n)}/quarantine`, { method: 'DELETE' }),
    ingot: (name) => `ingot node unquarantine ${quote(name)}`,
    openstack: () => null,
  },
  {
    id: 'break-lock',
    title: 'Break the lock',
    what: 'The operation that holds it fails. The machine is not touched.',
    danger: true,
    rule: 'ingot:node:lock',
    fits: (n) => !!(n as { reservation?: string | null }).reservation,
    send: (n) => ask(`/ingot${at(n)}/lock`, { method: 'DELETE' }),
    ingot: (name) => `ingot node break-lock ${quote(name)}`,
    openstack: () => null,
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
