// Requests to the API, as the signed-in user. The session's cookie is sent by the browser and can't be read here; its
// word against forged requests is in a header.
import { Store } from './store';

export interface Session {
  auth: 'none' | 'http_basic' | 'keystone';
  conductor?: string;
  signed_in: boolean;
  user?: string;
  csrf?: string;
  idle_seconds?: number;
  ends?: string;
  ended?: boolean; // it was signed in, and is not any more
}

export interface Access {
  user: string | null;
  project_id: string | null;
  everywhere: string[];
  owned: string[];
  leased: string[];
  verbs: Record<string, string[]>;
}

export const session = new Store<Session | null>(null);
export const access = new Store<Access | null>(null);

// Refused is an answer that is an error; its message is the API's sentence.
export class Refused extends Error {
  constructor(
    public status: number,
    message: string,
    public retryAfter = 0,
  ) {
    super(message);
  }
}

// message finds the sentence in the body of an error, in each of the shapes that the API has.
function message(status: number, body: string): string {
  try {
    let v = JSON.parse(body);
    if (typeof v.error_message === 'string') {
      try {
        v = JSON.parse(v.error_message);
      } catch {
        return v.error_message;
      }
    } else if (v.error_message) v = v.error_message;
    if (typeof v.faultstring === 'string') return v.faultstring;
    if (typeof v.description === 'string') return v.description;
    if (v.error && typeof v.error.message === 'string') return v.error.message;
    if (v.errors && v.errors[0]) return String(v.errors[0].detail || v.errors[0].title);
  } catch {
    // no JSON: from something between the browser and the server
  }
  return `The server answered ${status}.`;
}

export interface Options {
  method?: string;
  body?: unknown;
  passive?: boolean; // asked for by the page itself: it does not keep the session alive
  signal?: AbortSignal;
  headers?: Record<string, string>;
  keepalive?: boolean; // it is sent although the page is left
}

// send makes a request and returns the answer, whatever it is.
export function send(path: string, o: Options = {}): Promise<Response> {
  const headers: Record<string, string> = {
    'X-Ingot-CSRF': session.value?.csrf ?? '',
    'X-OpenStack-Ironic-API-Version': 'latest',
    ...o.headers,
  };
  if (o.passive) headers['X-Ingot-Passive'] = '1';
  let body: string | undefined;
  if (o.body !== undefined) {
    headers['Content-Type'] = 'application/json';
    body = JSON.stringify(o.body);
  }
  return fetch('/ui/api' + path, {
    method: o.method ?? 'GET',
    headers,
    body,
    signal: o.signal,
    keepalive: o.keepalive,
    credentials: 'same-origin',
    redirect: 'error',
  });
}

// ended notes that the session is over.
export function ended() {
  const s = session.value;
  if (s?.signed_in) session.set({ auth: s.auth, signed_in: false, ended: true });
}

export async function refused(r: Response): Promise<Refused> {
  const text = await r.text();
  if (r.status === 401) ended();
  return new Refused(r.status, message(r.status, text), Number(r.headers.get('Retry-After') ?? 0));
}

export async function ask<T>(path: string, o: Options = {}): Promise<T> {
  let r: Response;
  try {
    r = await send(path, o);
  } catch (err) {
    if (o.signal?.aborted) throw err;
    throw new Refused(0, 'The server does not answer. The page goes on by itself once it does.');
  }
  if (!r.ok) throw await refused(r);
  if (r.status === 204) return undefined as T;
  const text = await r.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

// begin asks who is signed in, and for what.
export async function begin(): Promise<void> {
  const r = await fetch('/ui/session', { credentials: 'same-origin' });
  const text = await r.text();
  if (!r.ok) throw new Refused(r.status, message(r.status, text));
  await enter(JSON.parse(text));
}

async function enter(s: Session) {
  if (s.signed_in) {
    const was = session.value;
    session.set({ ...s, signed_in: false }); // for the word of the session, in the next line
    try {
      access.set(await ask<Access>('/ingot/v1/access'));
    } catch (err) {
      if (!(err instanceof Refused) || err.status === 401) {
        session.set(was);
        throw err;
      }
      access.set({ user: null, project_id: null, everywhere: [], owned: [], leased: [], verbs: {} });
    }
  }
  session.set(s);
}

export async function signIn(credentials: Record<string, unknown>): Promise<void> {
  const r = await fetch('/ui/session', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(credentials),
    credentials: 'same-origin',
  });
  const text = await r.text();
  if (!r.ok) throw new Refused(r.status, message(r.status, text), Number(r.headers.get('Retry-After') ?? 0));
  await enter(JSON.parse(text));
}

export async function signOut(): Promise<void> {
  const s = session.value;
  await fetch('/ui/session', {
    method: 'DELETE',
    headers: { 'X-Ingot-CSRF': s?.csrf ?? '' },
    credentials: 'same-origin',
  });
  session.set({ auth: s?.auth ?? 'none', signed_in: false });
}

export interface Owned {
  owner?: string | null;
  lessee?: string | null;
}

// may reports whether a rule lets the user act on an object, or on any at all. The API checks again.
export function may(rule: string, on?: Owned): boolean {
  const a = access.value;
  if (!a) return false;
  if (a.everywhere.includes(rule)) return true;
  if (!on) return a.owned.includes(rule) || a.leased.includes(rule);
  const p = a.project_id;
  return (
    !!p && ((on.owner === p && a.owned.includes(rule)) || (on.lessee === p && a.leased.includes(rule)))
  );
}
