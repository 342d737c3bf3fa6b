// The fleet as a grid of signs, one for each machine, on one canvas however many there are.
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Row } from './machine';
import { go } from './route';
import { type Kind, kindOf, kinds, kindText, sentence, share } from './states';
import { nameOf } from './actions';
import { plural } from './format';

export type Colour = 'state' | 'health' | 'progress';
export const colours: Colour[] = ['state', 'health', 'progress'];

const cell = 16;

function kindFor(n: Row, by: Colour): Kind {
  if (by === 'health')
    return n.health === 'OK' ? 'active' : n.health === 'Warning' ? 'attention' : n.health === 'Critical' ? 'failed' : 'idle';
  return kindOf(n);
}

const healthText: Record<Kind, string> = {
  active: 'OK',
  attention: 'Warning',
  failed: 'Critical',
  idle: 'unknown',
  working: '',
  available: '',
};

export function Grid({ rows, by }: { rows: Row[]; by: Colour }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState(-1);
  const columns = Math.max(1, Math.floor(width / cell));

  useEffect(() => {
    const o = new ResizeObserver(() => setWidth(box.current?.clientWidth ?? 0));
    o.observe(box.current!);
    return () => o.disconnect();
  }, []);

  useEffect(() => {
    const c = canvas.current!;
    if (width === 0) return;
    const lines = Math.ceil(rows.length / columns);
    const scale = Math.min(2, window.devicePixelRatio || 1);
    c.width = width * scale;
    c.height = Math.max(1, lines * cell * scale);
    c.style.width = width + 'px';
    c.style.height = lines * cell + 'px';
    const g = c.getContext('2d')!;
    g.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const colour = Object.fromEntries(kinds.map((k) => [k, style.getPropertyValue('--' + k).trim()])) as Record<Kind, string>;
    const quiet = style.getPropertyValue('--line').trim();
    rows.forEach((n, i) => {
      const x = (i % columns) * cell + 2;
      const y = Math.floor(i / columns) * cell + 2;
      const s = cell - 4;
      const done = by === 'progress' ? share(n) : null;
      if (by === 'progress') {
        g.fillStyle = quiet;
        g.fillRect(x, y, s, s);
        if (kindOf(n) === 'working' || kindOf(n) === 'failed') {
          g.fillStyle = colour[kindOf(n)];
          const h = kindOf(n) === 'failed' ? s : Math.max(2, s * (done ?? 0));
          g.fillRect(x, y + s - h, s, h);
        }
      } else sign(g, kindFor(n, by), x, y, s, colour);
      if (i === at) {
        g.strokeStyle = style.getPropertyValue('--text').trim();
        g.lineWidth = 2;
        g.strokeRect(x - 1, y - 1, s + 2, s + 2);
      }
    });
  });

  const find = (e: MouseEvent) => {
    const r = canvas.current!.getBoundingClientRect();
    const col = Math.floor((e.clientX - r.left) / cell);
    const i = Math.floor((e.clientY - r.top) / cell) * columns + col;
    return col < columns && i >= 0 && i < rows.length ? i : -1;
  };
  const keys: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  const n = rows[at];
  const text = n
    ? `${nameOf(n)}: ${n.provision_state}${n.health ? ', health ' + n.health : ''}${sentence(n) ? '. ' + sentence(n) : ''}`
    : 'Point at a machine, or choose one with the arrow keys; Enter opens it.';
  const legend = kinds.filter((k) => (by === 'health' ? healthText[k] : true));
  return (
    <div class="grid">
      {by !== 'progress' && (
        <p class="legend">
          {legend.map((k) => (
            <span key={k}>
              <GridSign kind={k} /> {by === 'health' ? healthText[k] : kindText[k]}
            </span>
          ))}
        </p>
      )}
      {by === 'progress' && <p class="legend">A square fills from below as a machine's work goes on; full and warm is a failure.</p>}
      <p class="grid-text words" aria-live="polite">
        {text}
      </p>
      <div ref={box}>
        <canvas
          ref={canvas}
          tabIndex={0}
          role="img"
          aria-label={`${plural(rows.length, 'machine')} by ${by}. ${text}`}
          onMouseMove={(e) => setAt(find(e))}
          onClick={(e) => {
            const i = find(e);
            if (i >= 0) go('/ui/nodes/' + rows[i].uuid);
          }}
          onKeyDown={(e) => {
            if (e.key === 'Enter' && n) go('/ui/nodes/' + n.uuid);
            const step = keys[e.key];
            if (step === undefined) return;
            e.preventDefault();
            setAt(Math.max(0, Math.min(rows.length - 1, at + step)));
          }}
        />
      </div>
    </div>
  );
}

function GridSign({ kind }: { kind: Kind }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = Object.fromEntries(kinds.map((k) => [k, style.getPropertyValue('--' + k).trim()])) as Record<Kind, string>;
    const g = ref.current!.getContext('2d')!;
    g.clearRect(0, 0, 12, 12);
    sign(g, kind, 0, 0, 12, colour);
  });
  return <canvas ref={ref} width={12} height={12} aria-hidden="true" />;
}

// sign draws a kind by shape and colour, as parts.tsx does.
function sign(g: CanvasRenderingContext2D, kind: Kind, x: number, y: number, s: number, colour: Record<Kind, string>) {
  g.fillStyle = g.strokeStyle = colour[kind];
  g.lineWidth = 1.5;
  const [cx, cy, r] = [x + s / 2, y + s / 2, s / 2 - 1];
  g.beginPath();
  switch (kind) {
    case 'failed':
      g.moveTo(cx, y);
      g.lineTo(x + s, y + s);
      g.lineTo(x, y + s);
      g.fill();
      return;
    case 'attention':
      g.moveTo(cx, y);
      g.lineTo(x + s, cy);
      g.lineTo(cx, y + s);
      g.lineTo(x, cy);
      g.fill();
      return;
    case 'working':
      g.arc(cx, cy, r, 0, 2 * Math.PI);
      g.stroke();
      g.beginPath();
      g.arc(cx, cy, r, -Math.PI / 2, Math.PI / 2);
      g.fill();
      return;
    case 'active':
      g.arc(cx, cy, r, 0, 2 * Math.PI);
      g.fill();
      return;
    case 'available':
      g.arc(cx, cy, r, 0, 2 * Math.PI);
      g.stroke();
      return;
    case 'idle':
      g.moveTo(x + 2, cy);
      g.lineTo(x + s - 2, cy);
      g.stroke();
  }
}
