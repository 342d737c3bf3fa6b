// Actions on many machines: what will happen is shown first, then a bar for each machine.
import { useState } from 'preact/hooks';
import { may } from './api';
import { type Action, actions, faultOf, given, nameOf } from './actions';
import { fleet } from './live';
import type { Row } from './machine';
import { Bar, Command, Dialog, Fault, Questions, State } from './parts';
import { kindOf, share } from './states';
import { plural, rate } from './format';

// GroupBar offers what at least one of the chosen machines and the user's role allow.
export function GroupBar({ chosen, clear }: { chosen: Row[]; clear: () => void }) {
  const [action, setAction] = useState<Action | null>(null);
  if (chosen.length === 0 && !action) return null;
  const fitting = actions.filter((a) => chosen.some((n) => may(a.rule, n) && a.fits(n)));
  return (
    <div class="group" role="region" aria-label="Actions on the chosen machines">
      <strong>{plural(chosen.length, 'machine')} chosen</strong>
      <button type="button" class="plain" onClick={clear}>
        Clear
      </button>
      <span class="group-actions">
        {fitting.map((a) => (
          <button key={a.id} type="button" class={a.danger ? 'danger' : ''} onClick={() => setAction(a)}>
            {a.title} …
          </button>
        ))}
        {fitting.length === 0 && <span class="hint">Their states and your role allow nothing together.</span>}
      </span>
      {action && <GroupDialog action={action} chosen={chosen} close={() => setAction(null)} />}
    </div>
  );
}

type Result = 'waiting' | 'sent' | string; // else the error

const shown = 200; // machines that are listed

function GroupDialog({ action, chosen, close }: { action: Action; chosen: Row[]; close: () => void }) {
  const [fixed] = useState(() => ({
    can: chosen.filter((n) => may(action.rule, n) && action.fits(n)),
    state: chosen.filter((n) => may(action.rule, n) && !action.fits(n)),
    role: chosen.filter((n) => !may(action.rule, n)),
  }));
  const [results, setResults] = useState<Map<string, Result> | null>(null);
  const [filled, fill] = useState(() => given(action));
  const [fault, setFault] = useState('');
  const { can, state, role } = fixed;

  const run = async () => {
    const wrong = faultOf(action, filled);
    setFault(wrong);
    if (wrong) return;
    const map = new Map<string, Result>(can.map((n) => [n.uuid, 'waiting']));
    setResults(new Map(map));
    let next = 0;
    const worker = async () => {
      while (next < can.length) {
        const n = can[next++];
        try {
          await action.send(n, filled);
          map.set(n.uuid, 'sent');
        } catch (err) {
          map.set(n.uuid, (err as Error).message);
        }
        setResults(new Map(map));
      }
    };
    await Promise.all([worker(), worker(), worker(), worker()]);
  };

  const states = [...count(can.map((n) => n.provision_state))];
  const values = results ? [...results.values()] : [];
  const failed = values.filter((r) => r !== 'waiting' && r !== 'sent').length;
  const done = values.filter((r) => r !== 'waiting').length;
  return (
    <Dialog title={`${action.title}: ${plural(can.length, 'machine')}`} close={close} wide>
      {!results && (
        <>
          <p>{action.what}</p>
          <ul class="preview">
            {states.map(([s, n]) => (
              <li key={s}>
                <State state={s} /> {plural(n, 'machine')}
              </li>
            ))}
          </ul>
          {state.length > 0 && (
            <p class="hint">
              Left out, since their state does not allow it: {names(state)}.
            </p>
          )}
          {role.length > 0 && <p class="hint">Left out, since your role does not allow it: {names(role)}.</p>}
          <Questions of={action.asks ?? []} given={filled} change={fill} />
          <Fault text={fault} />
        </>
      )}
      {results && (
        <p role="status">
          {done < can.length ? `${done} of ${can.length} asked …` : `${plural(can.length - failed, 'request')} accepted`}
          {failed > 0 && `, ${failed} refused`}
        </p>
      )}
      <ul class="machines">
        {can.slice(0, shown).map((chosen) => {
          const n = fleet.value?.rows.get(chosen.uuid) ?? chosen; // as it is now
          const r = results?.get(n.uuid);
          const refusal = r && r !== 'waiting' && r !== 'sent' ? r : '';
          return (
            <li key={n.uuid}>
              <span class="name">{nameOf(n)}</span>
              <State state={n.provision_state} kind={kindOf(n)} />
              {r === 'sent' && kindOf(n) === 'working' && <Bar value={share(n)} label={'Progress of ' + nameOf(n)} />}
              {r === 'sent' && n.progress && <span class="num">{rate(n.progress.rate)}</span>}
              {refusal && <span class="words bad">{refusal}</span>}
            </li>
          );
        })}
      </ul>
      {can.length > shown && <p class="hint">and {plural(can.length - shown, 'machine')} more</p>}
      {can.length > 0 && (
        <details>
          <summary>The same in a shell</summary>
          <Command text={action.ingot(nameOf(can[0]), filled)} />
          {action.openstack(nameOf(can[0]), filled) && <Command text={action.openstack(nameOf(can[0]), filled)!} />}
        </details>
      )}
      <footer>
        <button type="button" onClick={close}>
          {results ? 'Close' : 'Cancel'}
        </button>
        {!results && (
          <button type="button" class={action.danger ? 'main danger' : 'main'} disabled={can.length === 0} onClick={run}>
            {action.title}: {plural(can.length, 'machine')}
          </button>
        )}
      </footer>
    </Dialog>
  );
}

function names(list: Row[]): string {
  const first = list.slice(0, 8).map(nameOf).join(', ');
  return list.length > 8 ? `${first} and ${list.length - 8} more` : first;
}

export function count(list: string[]): Map<string, number> {
  const m = new Map<string, number>();
  for (const s of list) m.set(s, (m.get(s) ?? 0) + 1);
  return m;
}
