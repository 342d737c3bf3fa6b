// The machines, as the API lists them, kept up to date by its stream of events.
import { ask, ended, send } from './api';
import type { Row, Transfer } from './machine';
import { withheld } from './states';
import { Store } from './store';

const fields =
  'uuid,name,provision_state,target_provision_state,provision_updated_at,power_state,target_power_state,' +
  'maintenance,maintenance_reason,fault,health,last_error,resource_class,driver,owner,lessee,conductor,' +
  'instance_name,instance_uuid,protected,retired';

export interface Event {
  id?: number;
  type: string;
  time: string;
  kind?: string;
  uuid?: string;
  name?: string;
  node_uuid?: string;
  node_name?: string;
  user?: string;
  changed?: Record<string, { from: unknown; to: unknown }>;
  fields?: string[];
  error?: string;
  progress?: Transfer;
  message?: string;
}

export type Link = 'connecting' | 'live' | 'offline';

const page = 1000; // machines of one request
const most = 100; // machines that are asked for one by one; more, and the list is read again
const kept = 500; // events that are remembered for people

export class Fleet {
  readonly rows = new Map<string, Row>();
  readonly version = new Store(0); // counts changes, at most one for each picture of the screen
  readonly link = new Store<Link>('connecting');
  readonly complete = new Store(false); // whether all pages of the list were read
  readonly fault = new Store<string>(''); // why the list can't be read
  readonly events: Event[] = []; // the newest last
  heard = 0; // how many events there were
  private listeners = new Set<(e: Event) => void>();
  private stop = new AbortController();
  private last = ''; // ID of the newest event
  private drawing = false;
  private wanted = new Set<string>();
  private asking = false;
  private reading = false;
  private stream = new AbortController(); // of the stream that is open
  private unseen = 0;
  private away = false;
  private wake = () => {};
  private again = false; // the list has to be read once more

  start() {
    document.addEventListener('visibilitychange', this.looked);
    window.addEventListener('pagehide', this.left);
    window.addEventListener('pageshow', this.back);
    void this.follow();
  }

  close() {
    document.removeEventListener('visibilitychange', this.looked);
    window.removeEventListener('pagehide', this.left);
    window.removeEventListener('pageshow', this.back);
    this.stop.abort();
    this.stream.abort();
  }

  // A page that is not seen for a while, or that the browser only remembers, ends its stream, and begins it again where
  // it was: without TLS a browser has six connections to a server, for all its pages together.
  private looked = () => {
    clearTimeout(this.unseen);
    if (document.hidden) this.unseen = window.setTimeout(this.left, Fleet.hidden);
    else this.back();
  };

  private left = () => {
    this.away = true;
    this.stream.abort();
  };

  private back = () => {
    this.away = false;
    this.wake();
  };

  static hidden = 30000;

  listen(f: (e: Event) => void): () => void {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  }

  private changed() {
    if (this.drawing) return;
    this.drawing = true;
    const draw = () => {
      if (!this.drawing) return;
      this.drawing = false;
      this.version.set(this.version.value + 1);
    };
    requestAnimationFrame(draw);
    setTimeout(draw, 250); // pictures are not drawn for pages that are not seen
  }

  private put(n: Row) {
    const was = this.rows.get(n.uuid);
    n.words = [n.name, n.uuid, n.resource_class, n.driver, n.owner, n.lessee, n.instance_name, n.instance_uuid, withheld(n.last_error) ? '' : n.last_error]
      .filter(Boolean)
      .join('\n')
      .toLowerCase();
    if (was?.progress && was.provision_state === n.provision_state) n.progress = was.progress;
    this.rows.set(n.uuid, n);
  }

  // read reads the whole list, a page at a time.
  private async read() {
    if (this.reading) {
      this.again = true;
      return;
    }
    this.reading = true;
    this.again = false;
    try {
      const seen = new Set<string>();
      let marker = '';
      for (;;) {
        const list = await ask<{ nodes: Row[]; next?: string }>(
          `/v1/nodes?fields=${fields}&limit=${page}` + (marker && `&marker=${marker}`),
          { passive: true, signal: this.stop.signal },
        );
        for (const n of list.nodes) {
          seen.add(n.uuid);
          this.put(n);
        }
        this.changed();
        if (!list.next || list.nodes.length === 0) break;
        marker = list.nodes[list.nodes.length - 1].uuid;
      }
      for (const id of this.rows.keys()) if (!seen.has(id)) this.rows.delete(id);
      this.fault.set('');
      this.complete.set(true);
      this.changed();
    } catch (err) {
      if (this.stop.signal.aborted) return;
      this.fault.set((err as Error).message);
      setTimeout(() => void this.read(), 5000);
    } finally {
      this.reading = false;
      if (this.again) void this.read();
    }
  }

  // want has machines read again, soon.
  want(uuid: string) {
    this.wanted.add(uuid);
    if (!this.asking) {
      this.asking = true;
      setTimeout(() => void this.refresh(), 100);
    }
  }

  private async refresh() {
    const list = [...this.wanted];
    this.wanted.clear();
    if (list.length > most) await this.read();
    else
      for (let i = 0; i < list.length; i += 6) {
        await Promise.all(
          list.slice(i, i + 6).map(async (id) => {
            try {
              this.put(await ask<Row>(`/v1/nodes/${id}?fields=${fields}`, { passive: true, signal: this.stop.signal }));
            } catch (err) {
              if ((err as { status?: number }).status === 404) this.rows.delete(id);
            }
          }),
        );
      }
    this.changed();
    this.asking = false;
    if (this.wanted.size > 0) this.want([...this.wanted][0]);
  }

  // follow reads the stream of events for as long as the page lives, and goes on where it was after each break.
  private async follow() {
    let pause = 0;
    while (!this.stop.signal.aborted) {
      if (pause > 0) await this.wait(pause);
      if (this.stop.signal.aborted) return;
      this.stream = new AbortController();
      try {
        const r = await send('/ingot/v1/events', {
          passive: true,
          signal: this.stream.signal,
          headers: { Accept: 'text/event-stream', ...(this.last && { 'Last-Event-ID': this.last }) },
        });
        if (r.status === 401) {
          ended();
          return;
        }
        if (r.ok && r.body) {
          pause = 250;
          await this.take(r.body.getReader());
        } else pause = Math.min(15000, Math.max(1000, pause * 2));
      } catch {
        pause = Math.min(15000, Math.max(500, pause * 2));
      }
      if (this.stop.signal.aborted) return;
      if (this.away) await new Promise<void>((done) => (this.wake = done));
      else this.link.set('offline');
    }
  }

  // wait waits for a while, or until the browser says that it is connected again.
  private wait(ms: number): Promise<void> {
    return new Promise((done) => {
      const end = () => {
        clearTimeout(timer);
        window.removeEventListener('online', end);
        done();
      };
      const timer = setTimeout(end, ms * (0.75 + Math.random() / 2));
      window.addEventListener('online', end);
    });
  }

  // silent is how long a stream may say nothing: the server says at least that it is still there each 15 seconds.
  static silent = 40000;

  private async take(r: ReadableStreamDefaultReader<Uint8Array>) {
    const decoder = new TextDecoder();
    let text = '';
    for (;;) {
      let timer = 0;
      const late = new Promise<never>((_, fail) => {
        timer = window.setTimeout(() => fail(new Error('silent')), Fleet.silent);
      });
      let chunk: ReadableStreamReadResult<Uint8Array>;
      try {
        chunk = await Promise.race([r.read(), late]);
      } catch (err) {
        void r.cancel().catch(() => {});
        throw err;
      } finally {
        clearTimeout(timer);
      }
      if (chunk.done) return;
      text += decoder.decode(chunk.value, { stream: true });
      for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
        this.message(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  private message(text: string) {
    let data = '';
    for (const line of text.split('\n')) {
      if (line.startsWith('id: ')) this.last = line.slice(4);
      else if (line.startsWith('data: ')) data += line.slice(6);
    }
    if (data) this.apply(JSON.parse(data));
  }

  private apply(e: Event) {
    if (e.type === 'ingot.ready') {
      this.link.set('live');
      if (!this.complete.value || this.fault.value) void this.read();
      return;
    }
    if (e.type === 'ingot.gap') {
      void this.read();
      return;
    }
    if (e.type !== 'ingot.node.progress') {
      this.events.push(e);
      this.heard++;
      if (this.events.length > kept) this.events.splice(0, this.events.length - kept);
    }
    for (const f of this.listeners) f(e);
    if (e.kind === 'node' && e.uuid) this.node(e, e.uuid);
    this.changed();
  }

  private node(e: Event, uuid: string) {
    if (e.type.endsWith('.delete.end')) {
      this.rows.delete(uuid);
      return;
    }
    const n = this.rows.get(uuid);
    if (!n || e.type.endsWith('.update.end')) {
      this.want(uuid);
      return;
    }
    if (e.type === 'ingot.node.progress') {
      n.progress = e.progress;
      return;
    }
    for (const [field, { to }] of Object.entries(e.changed ?? {})) if (field in n) (n as any)[field] = to;
    if (e.changed?.provision_state) {
      n.provision_updated_at = e.time;
      delete n.progress;
    }
    if (e.error) n.last_error = e.error;
    else if (e.type.includes('provision_set') || e.type.includes('power_set')) n.last_error = null;
    if (e.changed?.maintenance || e.changed?.fault) this.want(uuid); // for the reason
  }
}

export const fleet = new Store<Fleet | null>(null);
