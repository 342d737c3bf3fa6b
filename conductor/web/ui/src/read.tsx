// Reading from the API in components.
import { useEffect, useRef, useState } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import { ask } from './api';
import { Fault } from './parts';

// useRead reads an address, and again when a key changes. What was read before stays until then.
export function useRead<T>(path: string | null, key: unknown = 0): { value: T | null; fault: Error | null; again: () => void } {
  const [value, set] = useState<T | null>(null);
  const [fault, setFault] = useState<Error | null>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    ask<T>(path, { passive: true, signal: stop.signal }).then(
      (v) => {
        set(v);
        setFault(null);
      },
      (err) => {
        if (!stop.signal.aborted) setFault(err);
      },
    );
    return () => stop.abort();
  }, [path, key, turn]);
  return { value, fault, again: () => setTurn((n) => n + 1) };
}

// useSeldom is a value that changes often, as it was at most so many milliseconds ago.
export function useSeldom<T>(value: T, ms: number): T {
  const [shown, show] = useState(value);
  const newest = useRef(value);
  const timer = useRef(0);
  newest.current = value;
  useEffect(() => {
    if (value === shown || timer.current) return;
    timer.current = window.setTimeout(() => {
      timer.current = 0;
      show(newest.current);
    }, ms);
  }, [value, shown]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return shown;
}

// Loaded shows what was read, or why it was not.
export function Loaded<T>(p: {
  of: { value: T | null; fault: Error | null; again: () => void };
  missing?: ComponentChildren; // where the answer is that there is none
  children: (value: T) => ComponentChildren;
}) {
  const status = (p.of.fault as { status?: number } | null)?.status;
  if (p.of.fault && status === 404 && p.missing) return <>{p.missing}</>;
  if (p.of.fault && status === 403) return <p class="hint">Your role may not see this.</p>;
  if (p.of.fault) return <Fault text={p.of.fault.message} again={p.of.again} />;
  if (p.of.value === null)
    return (
      <p class="hint" aria-busy="true">
        Reading …
      </p>
    );
  return <>{p.children(p.of.value)}</>;
}
