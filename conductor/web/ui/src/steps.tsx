// The steps of the work under way and of the last work of each kind, with the agent's log.
import { useEffect, useState } from 'preact/hooks';
import type { Machine } from './machine';
import { ask, may } from './api';
import { Loaded, useRead } from './read';
import { Bar, Card, Fault, Sign, Time } from './parts';
import { share } from './states';
import { moment, rate, seconds } from './format';
import type { Kind } from './states';

interface Step {
  interface: string;
  step: string;
  in_band: boolean;
  status: string;
  started_at: string | null;
  ended_at: string | null;
  result?: unknown;
}

interface Job {
  id: string;
  phase: string;
  started_at: string;
  ended_at?: string;
  requester: string | null;
  detail: string | null;
  failure?: string | null;
  steps: Step[];
}

const kindOfStep: Record<string, Kind> = { done: 'active', failed: 'failed', running: 'working', pending: 'idle' };

export function StepsTab({ n }: { n: Machine }) {
  const read = useRead<{ job: Job | null; past: Job[] }>(
    `/ingot/v1/nodes/${n.uuid}/steps`,
    [n.provision_state, n.provision_updated_at, n.progress?.step].join(),
  );
  return (
    <Loaded of={read}>
      {(v) => (
        <div class="columns">
          {!v.job && v.past.length === 0 && (
            <Card title="Steps" wide>
              <p class="hint">No work was done on this machine yet. Once it is managed, inspected or deployed, its steps and their results are here.</p>
            </Card>
          )}
          {v.job && <JobCard n={n} job={v.job} now />}
          {v.past.map((j) => (
            <JobCard key={j.id} n={n} job={j} />
          ))}
          {may('ingot:node:logs', n) && <Logs n={n} />}
        </div>
      )}
    </Loaded>
  );
}

function JobCard({ n, job, now }: { n: Machine; job: Job; now?: boolean }) {
  return (
    <Card title={now ? `Now: ${job.phase}` : `Last ${job.phase}`}>
      <p class="hint">
        <Time at={job.started_at} />
        {job.requester && ` for ${job.requester}`}
        {job.ended_at && `, ${seconds((Date.parse(job.ended_at) - Date.parse(job.started_at)) / 1000)}`}
      </p>
      {now && job.detail && <p class="words">{job.detail}</p>}
      <Fault text={job.failure ?? ''} />
      <ol class="steps">
        {job.steps.map((s, i) => (
          <li key={i}>
            <Sign kind={kindOfStep[s.status] ?? 'idle'} />
            <span class="step-name">
              {s.interface}.{s.step}
            </span>
            <span class="hint">{s.status}</span>
            {s.started_at && s.ended_at && (
              <span class="num">{seconds((Date.parse(s.ended_at) - Date.parse(s.started_at)) / 1000)}</span>
            )}
            {now && s.status === 'running' && n.progress?.step === s.step && (
              <>
                <Bar value={share(n)} label={'Progress of ' + s.step} />
                <span class="num">{rate(n.progress.rate)}</span>
              </>
            )}
            {s.result !== undefined && s.result !== null && (
              <details class="result">
                <summary>Result</summary>
                <pre class="scrolls" tabIndex={0}>
                  {JSON.stringify(s.result, null, 2)}
                </pre>
              </details>
            )}
          </li>
        ))}
      </ol>
    </Card>
  );
}

interface LogLine {
  seq: number;
  at: string;
  level: string;
  text: string;
}

const keptLines = 1000;

// Logs follows the agent's log for as long as it is on the page.
function Logs({ n }: { n: Machine }) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [fault, setFault] = useState('');
  const [filter, setFilter] = useState('');
  useEffect(() => {
    const stop = new AbortController();
    let after = 0;
    let timer = 0;
    const read = async () => {
      try {
        const v = await ask<{ lines: LogLine[]; next: number }>(`/ingot/v1/nodes/${n.uuid}/logs?after=${after}`, {
          passive: true,
          signal: stop.signal,
        });
        after = v.next;
        if (v.lines.length) setLines((was) => [...was, ...v.lines].slice(-keptLines));
        setFault('');
      } catch (err) {
        if (stop.signal.aborted) return;
        setFault((err as Error).message);
      }
      timer = window.setTimeout(read, 2000);
    };
    void read();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [n.uuid]);
  const shown = filter ? lines.filter((l) => l.text.toLowerCase().includes(filter.toLowerCase())) : lines;
  return (
    <Card title="The agent's log" wide>
      <Fault text={fault} />
      {lines.length === 0 ? (
        <p class="hint">The agent has reported no lines since this conductor knows it.</p>
      ) : (
        <>
          <p class="tools">
            <input
              type="search"
              aria-label="Search the log"
              placeholder="Search the log"
              value={filter}
              onInput={(e) => setFilter(e.currentTarget.value)}
            />
          </p>
          <div class="log scrolls" tabIndex={0} role="log" aria-label="Lines of the agent's log">
            {shown.map((l) => (
              <div key={l.seq} class={/^(error|warn)/i.test(l.level) ? 'bad' : ''}>
                <span class="hint">{moment(l.at)}</span> {l.level} {l.text}
              </div>
            ))}
          </div>
        </>
      )}
    </Card>
  );
}
