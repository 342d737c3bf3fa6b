// Where the time of a job went, from the power button to the login: a waterfall of spans, compared with the job before
// and with the median of the fleet.
import { useMemo, useState } from 'preact/hooks';
import type { Machine } from './machine';
import { may } from './api';
import { Loaded, useRead } from './read';
import { Card, Empty, Sign, Time } from './parts';
import { plural, rate, seconds, size } from './format';

interface Span {
  name: string;
  kind: string;
  step?: string;
  begin: string;
  end: string;
  seconds: number;
  detail?: string;
  failed?: boolean;
  bytes?: number;
  rate?: number;
  spans?: Span[];
}

interface Trace {
  job_id: string;
  phase: string;
  begin: string;
  end: string;
  seconds: number;
  open: boolean;
  outcome: string | null;
  attributed: number;
  firmware_boots: number;
  kexecs: number;
  spans: Span[];
}

const kindsOfSpan: [string, string][] = [
  ['conductor', 'conductor'],
  ['bmc', 'power, controller'],
  ['firmware', 'firmware'],
  ['network', 'network boot'],
  ['kernel', 'kernel'],
  ['agent', 'agent'],
  ['step', 'step'],
  ['kexec', 'kexec'],
  ['os', 'operating system'],
  ['wait', 'waiting'],
  ['unknown', 'not known'],
];

interface Line {
  span: Span;
  depth: number;
}

// flatten lists spans below each other, without those that can't be seen.
function flatten(spans: Span[], least: number, depth = 0, into: Line[] = []): Line[] {
  for (const span of spans) {
    if (span.seconds >= least || span.bytes || span.failed) into.push({ span, depth });
    flatten(span.spans ?? [], least, depth + 1, into);
  }
  return into;
}

// brief is the time below which a span of a whole is left out.
const brief = (whole: { seconds: number }) => Math.min(0.05, whole.seconds / 500);

// key names a span among those of its trace, to find it again in another one.
const key = (l: Line) => `${l.depth}/${l.span.name}`;

export function TimelineTab({ n }: { n: Machine }) {
  const read = useRead<{ traces: Trace[] }>(`/ingot/v1/nodes/${n.uuid}/timeline`, n.provision_state + n.progress?.step);
  return (
    <Loaded of={read}>
      {(t) =>
        t.traces.length === 0 ? (
          <Empty title="Nothing was done with this machine yet.">
            <p>Once it is inspected, cleaned or deployed, this shows where the time went.</p>
          </Empty>
        ) : (
          <Waterfall traces={t.traces} />
        )
      }
    </Loaded>
  );
}

// Medians are how long jobs of a phase that went well take on the machines that the user sees.
interface Medians {
  phase: string;
  jobs: number;
  seconds: number;
  spans: { name: string; depth: number; seconds: number }[];
}

// sums are the seconds of spans, by name and depth: a trace may have several that are called the same.
function sums(spans: Span[]): Map<string, number> {
  const m = new Map<string, number>();
  for (const l of flatten(spans, 0)) m.set(key(l), (m.get(key(l)) ?? 0) + l.span.seconds);
  return m;
}

function Waterfall({ traces }: { traces: Trace[] }) {
  const [id, choose] = useState<string | null>(null);
  const t = traces.find((x) => x.job_id === id) ?? traces[traces.length - 1];
  const before = traces.slice(0, traces.indexOf(t)).findLast((x) => x.phase === t.phase);
  const [zoom, setZoom] = useState<Span | null>(null);
  const lines = useMemo(() => flatten(zoom ? (zoom.spans?.length ? zoom.spans : [zoom]) : t.spans, brief(zoom ?? t)), [t, zoom]);
  const earlier = useMemo(() => sums(before?.spans ?? []), [before]);
  const own = useMemo(() => sums(t.spans), [t]);
  // difference is how much longer all spans with the name of a line took; at the first of them, and if it matters.
  const difference = (i: number, of: Map<string, number>): number | null => {
    const k = key(lines[i]);
    const was = of.get(k);
    if (zoom || was === undefined || lines.findIndex((l) => key(l) === k) < i) return null;
    const d = (own.get(k) ?? 0) - was;
    return Math.abs(d) < 0.05 ? null : d;
  };
  const read = useRead<Medians>(may('ingot:events') ? `/ingot/v1/medians?phase=${encodeURIComponent(t.phase)}` : null, t.job_id + t.open);
  const fleet = read.value?.phase === t.phase && read.value.jobs > 1 ? read.value : null;
  const usual = useMemo(() => new Map((fleet?.spans ?? []).map((s) => [`${s.depth}/${s.name}`, s.seconds])), [fleet]);
  const [begin, end] = [Date.parse(zoom?.begin ?? t.begin), Date.parse(zoom?.end ?? t.end)];
  const whole = Math.max(1, end - begin);
  const used = new Set(lines.map((l) => l.span.kind));
  const outcome = t.open ? 'goes on' : t.outcome;
  return (
    <Card title="Where the time went" wide>
      <div class="tools">
        <select
          aria-label="Operation"
          value={t.job_id}
          onChange={(e) => {
            choose(e.currentTarget.value);
            setZoom(null);
          }}
        >
          {[...traces].reverse().map((x) => (
            <option key={x.job_id} value={x.job_id}>
              {x.phase}, {seconds(x.seconds)}
              {x.open ? ', goes on' : x.outcome ? ', ' + x.outcome : ''}
            </option>
          ))}
        </select>
        {zoom && (
          <button type="button" onClick={() => setZoom(null)}>
            Show all of it
          </button>
        )}
      </div>
      <p>
        <strong>
          {zoom ? zoom.name : t.phase}: <span class="num">{seconds((zoom ?? t).seconds)}</span>
        </strong>
        {outcome && !zoom && `, ${outcome}`}. Began <Time at={(zoom ?? t).begin} />. {t.firmware_boots} firmware{' '}
        {t.firmware_boots === 1 ? 'start' : 'starts'}
        {t.kexecs > 0 && `, ${t.kexecs} by kexec`}; the cause of {Math.round(t.attributed * 100)} % of the time is known.
        {before && !zoom && (
          <>
            {' '}
            The one before took <span class="num">{seconds(before.seconds)}</span>.
          </>
        )}
        {fleet && !zoom && (
          <>
            {' '}
            The median of {plural(fleet.jobs, 'machine')} is <span class="num">{seconds(fleet.seconds)}</span>.
          </>
        )}
      </p>
      <p class="legend">
        {kindsOfSpan
          .filter(([k]) => used.has(k))
          .map(([k, text]) => (
            <span key={k}>
              <i class={'swatch s-' + k} /> {text}
            </span>
          ))}
      </p>
      <div class="waterfall" role="table" aria-label="Spans of time">
        <div role="row" class="span heads">
          <span role="columnheader">What</span>
          <span role="columnheader" class="num">Time</span>
          <span role="columnheader" class="num" title="Against the one before">before</span>
          <span role="columnheader" class="num" title="Against the median of the fleet">median</span>
          <span role="columnheader" class="when">When</span>
        </div>
        {lines.map((l, i) => {
          const s = l.span;
          const [d, m] = [difference(i, earlier), difference(i, usual)];
          const from = (100 * (Date.parse(s.begin) - begin)) / whole;
          const width = Math.max(0.3, (100 * (Date.parse(s.end) - Date.parse(s.begin))) / whole);
          return (
            <div role="row" key={i} class={s.failed ? 'span bad' : 'span'}>
              <span role="cell" class="span-name" style={{ paddingLeft: l.depth * 12 + 'px' }}>
                {s.failed && <Sign kind="failed" />}{' '}
                {s.spans?.length ? (
                  <button type="button" class="plain" onClick={() => setZoom(s)}>
                    {s.name}
                  </button>
                ) : (
                  s.name
                )}
              </span>
              <span role="cell" class="num">
                {seconds(s.seconds)}
              </span>
              {[d, m].map((x, k) => (
                <span key={k} role="cell" class={'num change' + (x !== null && x > Math.max(1, 0.2 * s.seconds) ? ' t-attention' : '')}>
                  {x === null ? '' : (x >= 0 ? '+' : '−') + seconds(Math.abs(x))}
                </span>
              ))}
              <span role="cell" class="span-bar" title={s.detail}>
                <i class={'s-' + s.kind} style={{ marginLeft: Math.min(99.7, Math.max(0, from)) + '%', width: Math.min(100, width) + '%' }} />
              </span>
              {(s.bytes || s.detail) && (
                <span role="cell" class="span-note words">
                  {s.bytes ? `${size(s.bytes)}${s.rate ? ', ' + rate(s.rate) : ''}` : ''} {s.detail}
                </span>
              )}
            </div>
          );
        })}
      </div>
    </Card>
  );
}
