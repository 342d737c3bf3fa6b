// Small parts that all pages are made of. Texts from machines are children of elements, and so are texts: nothing here
// makes markup of a text.
import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Kind } from './states';
import { kindOfState } from './states';
import { moment, ago } from './format';
import type { Given, Question } from './actions';

// Sign is the shape of a kind of state: shapes differ for those who can't tell the colours apart.
export function Sign({ kind }: { kind: Kind }) {
  return (
    <svg class={'sign k-' + kind} viewBox="0 0 12 12" aria-hidden="true">
      {kind === 'failed' && <path d="M6 1 11.5 11H.5z" />}
      {kind === 'attention' && <path d="M6 .5 11.5 6 6 11.5.5 6z" />}
      {kind === 'working' && (
        <>
          <circle cx="6" cy="6" r="4.6" class="line" />
          <path d="M6 1.4a4.6 4.6 0 0 1 0 9.2z" />
        </>
      )}
      {kind === 'active' && <circle cx="6" cy="6" r="5" />}
      {kind === 'available' && <circle cx="6" cy="6" r="4.3" class="line" />}
      {kind === 'idle' && <path d="M2 6h8" class="line" />}
    </svg>
  );
}

export function State({ state, kind }: { state: string; kind?: Kind }) {
  const k = kind ?? kindOfState(state);
  return (
    <span class={'state t-' + k}>
      <Sign kind={k} />
      <span>{state}</span>
    </span>
  );
}

// Bar is how far something is, 0 to 1; null: it is not known.
export function Bar({ value, label }: { value: number | null; label: string }) {
  const percent = value === null ? undefined : Math.round(value * 100);
  return (
    <div
      class={'bar' + (value === null ? ' unknown' : '')}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent}
    >
      <div style={{ width: value === null ? '100%' : `${percent}%` }} />
    </div>
  );
}

// Table is a table that scrolls by itself where it is too wide; with stack its rows become small lists instead, for
// which its cells have data-name. More are further classes.
export function Table(p: { heads: string[]; stack?: boolean; more?: string; children: ComponentChildren }) {
  return (
    <div class="scrolls">
      <table class={[p.stack && 'stack', p.more].filter(Boolean).join(' ')}>
        <thead>
          <tr>
            {p.heads.map((h) => (
              <th key={h}>{h}</th>
            ))}
          </tr>
        </thead>
        <tbody>{p.children}</tbody>
      </table>
    </div>
  );
}

export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <span>–</span>;
  return <time dateTime={at}>{moment(at)}</time>;
}

// Ago is how long ago something was; the exact time is its title.
export function Ago({ at }: { at: string | null | undefined }) {
  if (!at) return <span>–</span>;
  return (
    <time dateTime={at} title={moment(at)}>
      {ago(at)}
    </time>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function Fault({ text, again }: { text: string; again?: () => void }) {
  if (!text) return null;
  return (
    <div class="fault" role="alert">
      <Sign kind="failed" />
      <span class="words">{text}</span>
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

// Command is a line for a shell, to copy.
export function Command({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 2000);
    } catch {
      // without TLS browsers have no clipboard: the text can be marked
    }
  };
  return (
    <div class="command">
      <code tabIndex={0}>{text}</code>
      <button type="button" onClick={copy} aria-label={'Copy the command ' + text}>
        {done ? 'Copied' : 'Copy'}
      </button>
      <span class="hidden" aria-live="polite">
        {done ? 'Copied' : ''}
      </span>
    </div>
  );
}

// Dialog is modal; Escape closes it, and the focus goes back to where it was.
export function Dialog(p: { title: string; close: () => void; children: ComponentChildren; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    const d = ref.current!;
    d.showModal();
    return () => {
      d.close();
      before?.focus?.();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      class={p.wide ? 'wide' : ''}
      aria-labelledby="dialog-title"
      onCancel={(e) => {
        e.preventDefault();
        p.close();
      }}
    >
      <header>
        <h2 id="dialog-title">{p.title}</h2>
        <button type="button" class="plain" onClick={p.close} aria-label="Close">
          <svg viewBox="0 0 12 12" aria-hidden="true">
            <path d="m2 2 8 8m0-8-8 8" />
          </svg>
        </button>
      </header>
      <div class="dialog-body">{p.children}</div>
    </dialog>
  );
}

export function Field(p: { label: string; hint?: ComponentChildren; children: (id: string) => JSX.Element }) {
  const [id] = useState(() => 'f' + Math.random().toString(36).slice(2));
  return (
    <div class="field">
      <label for={id}>{p.label}</label>
      {p.children(id)}
      {p.hint && <p class="hint">{p.hint}</p>}
    </div>
  );
}

// Questions are the fields of an action's dialog.
export function Questions({ of, given, change }: { of: Question[]; given: Given; change: (g: Given) => void }) {
  return (
    <>
      {of.map((q) => (
        <Field key={q.id} label={q.label} hint={q.hint}>
          {(id) =>
            q.options ? (
              <select id={id} value={given[q.id]} onChange={(e) => change({ ...given, [q.id]: e.currentTarget.value })}>
                {q.options.map(([value, title]) => (
                  <option key={value} value={value}>
                    {title}
                  </option>
                ))}
              </select>
            ) : (
              <input
                id={id}
                {...({ type: q.secret ? 'password' : 'text' } as { type: 'text' })}
                autocomplete={q.secret ? 'new-password' : 'off'}
                value={given[q.id]}
                onInput={(e) => change({ ...given, [q.id]: e.currentTarget.value })}
              />
            )
          }
        </Field>
      ))}
    </>
  );
}

export function Card({ title, children, wide }: { title: string; children: ComponentChildren; wide?: boolean }) {
  return (
    <section class={wide ? 'card wide' : 'card'}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}

// Facts is a list of names and values.
export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value === null || value === undefined || value === '' ? '–' : value}</dd>
        </div>
      ))}
    </dl>
  );
}
