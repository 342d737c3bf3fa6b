// What a provision state means to people who look at many machines: a kind, with a colour and a shape.
import type { Row } from './machine';

export type Kind = 'failed' | 'attention' | 'working' | 'active' | 'available' | 'idle';

export const kinds: Kind[] = ['failed', 'attention', 'working', 'active', 'available', 'idle'];

export const kindText: Record<Kind, string> = {
  failed: 'failed',
  attention: 'needs attention',
  working: 'at work',
  active: 'in use',
  available: 'available',
  idle: 'not ready',
};

export function kindOfState(state: string): Kind {
  if (state.endsWith('failed') || state === 'error') return 'failed';
  if (state.endsWith('hold')) return 'attention';
  if (state === 'active' || state === 'rescue') return 'active';
  if (state === 'available') return 'available';
  if (state === 'enroll' || state === 'manageable') return 'idle';
  return 'working';
}

// kindOf is the kind of a machine: maintenance and faults go before what it does.
export function kindOf(n: Row): Kind {
  const k = kindOfState(n.provision_state);
  if (k === 'failed') return k;
  return n.maintenance || n.fault || n.health === 'Critical' ? 'attention' : k;
}

export const failing = (n: Row) => kindOf(n) === 'failed';

// withheld reports whether the API shows no error to this user, nor whether there is one.
export const withheld = (error: string | null) => !!error && error.startsWith('** Value Redacted');

// sentence is why a machine is as it is, if that has to be said.
export function sentence(n: Row): string {
  if (withheld(n.last_error)) {
    if (failing(n)) return "Its owner can see why.";
  } else if (n.last_error) return n.last_error;
  if (n.maintenance) return n.maintenance_reason ? `Maintenance: ${n.maintenance_reason}` : 'In maintenance';
  if (n.fault) return `Fault: ${n.fault}`;
  if (n.health === 'Critical') return 'The controller reports the health Critical';
  return '';
}

// share is how much of the work that a machine counts in bytes is done, 0 to 1; null: it counts none.
export function share(n: Row): number | null {
  return n.progress && n.progress.total > 0 ? Math.min(1, n.progress.bytes / n.progress.total) : null;
}

// left is how many seconds of it are left; null: unknown.
export function left(n: Row): number | null {
  const p = n.progress;
  return p && p.total > p.bytes && p.rate > 0 ? (p.total - p.bytes) / p.rate : null;
}
