// The serial console of a machine. Each request is one to the API: the page asks for output again and again, and sends
// what is typed.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask, Refused, send } from './api';
import { nameOf } from './actions';
import type { Machine } from './machine';
import { Card, Command, Fault, Sign } from './parts';
import { quote } from './format';

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));
const most = 2048; // bytes of one request

const base64 = (b: Uint8Array) => btoa(Array.from(b, (c) => String.fromCharCode(c)).join(''));
const bytes = (text: string) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// Session is a session at a console, while the page shows it.
class Session {
  private stop = new AbortController();
  private typed = new Uint8Array();
  private sending = false;
  private next = 0;

  constructor(
    private path: string,
    private write: (b: Uint8Array | string) => void,
    private over: (why: string) => void,
  ) {}

  // type sends what is typed, in order: one request at a time.
  async type(text: string) {
    const more = new TextEncoder().encode(text);
    const all = new Uint8Array(this.typed.length + more.length);
    all.set(this.typed);
    all.set(more, this.typed.length);
    this.typed = all;
    if (this.sending) return;
    this.sending = true;
    while (this.typed.length && !this.stop.signal.aborted) {
      const now = this.typed.slice(0, most);
      try {
        await ask(this.path, { method: 'POST', body: { input: base64(now) }, signal: this.stop.signal });
        this.typed = this.typed.slice(now.length);
      } catch (err) {
        if (err instanceof Refused && err.status === 409) await pause(300); // the machine is slower
        else this.end((err as Error).message);
      }
    }
    this.sending = false;
  }

  // follow reads until the session ends.
  async follow() {
    for (let failures = 0; !this.stop.signal.aborted; ) {
      try {
        const out = await ask<{ output: string | null; next: number; lost: number; ended: string | null }>(
          `${this.path}?after=${this.next}`,
          { passive: true, signal: this.stop.signal },
        );
        failures = 0;
        if (this.stop.signal.aborted) return;
        if (out.lost) this.write(`\r\n[${out.lost} bytes are not kept any more]\r\n`);
        if (out.output) this.write(bytes(out.output));
        this.next = out.next;
        if (out.ended) this.end(out.ended);
      } catch (err) {
        const status = err instanceof Refused ? err.status : 0;
        if (this.stop.signal.aborted) return;
        if ((status === 0 || status >= 500) && ++failures < 10) await pause(1000);
        else this.end((err as Error).message);
      }
    }
  }

  private end(why: string) {
    if (this.stop.signal.aborted) return;
    this.stop.abort();
    this.over(why);
  }

  // close ends the session at the server, too, also when the page is left.
  close() {
    if (this.stop.signal.aborted) return;
    this.stop.abort();
    void send(this.path, { method: 'DELETE', keepalive: true }).catch(() => {});
  }
}

export function ConsoleTab({ n }: { n: Machine }) {
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const [phase, setPhase] = useState<'closed' | 'opening' | 'open'>('closed');
  const [fault, setFault] = useState('');
  const [taken, setTaken] = useState(false);
  const [why, setWhy] = useState('');
  const now = useRef<{ session: Session; dispose: () => void } | null>(null);
  const at = `/ingot/v1/nodes/${n.uuid}/console`;

  const shut = () => {
    now.current?.session.close();
    now.current?.dispose();
    now.current = null;
  };
  useEffect(() => {
    const left = () => now.current?.session.close();
    window.addEventListener('pagehide', left);
    return () => {
      window.removeEventListener('pagehide', left);
      shut();
    };
  }, [n.uuid]);

  const open = async (take: boolean) => {
    shut();
    setPhase('opening');
    setFault('');
    setTaken(false);
    setWhy('');
    try {
      const [{ show }, { session }] = await Promise.all([
        import('./terminal'),
        ask<{ session: string }>(at, { method: 'POST', body: take ? { take } : {} }),
      ]);
      const path = `${at}/${session}`;
      if (!box.current) {
        void send(path, { method: 'DELETE' });
        return;
      }
      box.current.replaceChildren();
      const s = new Session(
        path,
        (b) => t.write(b),
        (reason) => {
          setWhy(reason);
          setPhase('closed');
        },
      );
      const t = show(box.current, (text) => void s.type(text), () => button.current?.focus());
      now.current = { session: s, dispose: () => t.dispose() };
      setPhase('open');
      void s.follow();
    } catch (err) {
      setTaken((err as Refused).status === 409);
      setFault((err as Error).message);
      setPhase('closed');
    }
  };
  return (
    <Card title="Serial console" wide>
      <p class="hint">
        By serial over LAN of the controller. What you type goes to the machine; <kbd>Ctrl</kbd>+<kbd>]</kbd> leads back to the page. One
        person works at a console, and that it was opened is in the history.
      </p>
      <div class="buttons">
        {phase === 'open' ? (
          <button
            type="button"
            ref={button}
            onClick={() => {
              shut();
              setPhase('closed');
              setWhy('You have closed it.');
            }}
          >
            Close the console
          </button>
        ) : (
          <button type="button" class="main" disabled={phase === 'opening'} onClick={() => void open(false)}>
            {phase === 'opening' ? 'Opening …' : why ? 'Open it again' : 'Open the console'}
          </button>
        )}
        {taken && (
          <button type="button" class="danger" onClick={() => void open(true)}>
            Take it over
          </button>
        )}
      </div>
      <Fault text={fault} />
      <p role="status">
        {why && (
          <>
            <Sign kind="attention" /> The session has ended: <span class="words">{why}</span>
          </>
        )}
      </p>
      <div class={phase === 'open' || (why && now.current) ? 'terminal-box scrolls' : ''} ref={box} />
      <details>
        <summary>The same in a shell</summary>
        <Command text={`ingot node console ${quote(nameOf(n))}`} />
        <p class="hint">It asks for the controller's password: the shell reaches the controller itself.</p>
      </details>
    </Card>
  );
}
