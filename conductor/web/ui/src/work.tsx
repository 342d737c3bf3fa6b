// The form for cleaning and service: which steps run, with their arguments, checked against the steps of the machine.
import { useMemo, useState } from 'preact/hooks';
import { ask, may } from './api';
import { nameOf, takes } from './actions';
import type { Machine } from './machine';
import { useRead } from './read';
import { Command, Dialog, Fault, Field } from './parts';
import { type Plan, PlanButtons, PlanCard } from './plan';
import { quote } from './format';

export type Kind = 'clean' | 'service';

// works are the kinds of work with steps of one's choice that are offered.
export const works = (n: Machine): Kind[] =>
  may('node:set_provision_state', n) ? (['clean', 'service'] as const).filter((k) => takes(k)(n)) : [];

interface Known {
  interface: string;
  step: string;
  args: string[]; // those that are needed end in *
  phases: Record<string, number>;
}

interface Chosen {
  name: string; // interface.step
  args: string; // JSON
}

// argsOf reads arguments; a text says why they are wrong.
function argsOf(c: Chosen, known: Known | undefined): Record<string, unknown> | string {
  let v: unknown = {};
  if (c.args.trim())
    try {
      v = JSON.parse(c.args);
    } catch (err) {
      return `The arguments of ${c.name} are no JSON: ${(err as Error).message}`;
    }
  if (typeof v !== 'object' || v === null || Array.isArray(v)) return `The arguments of ${c.name} are no JSON object, as {"name": "value"}.`;
  if (!known) return v as Record<string, unknown>;
  const names = known.args.map((a) => a.replace('*', ''));
  for (const k of Object.keys(v))
    if (!names.includes(k)) return `${c.name} has no argument ${k}. ` + (names.length ? `It has ${names.join(', ')}.` : 'It has none.');
  for (const a of known.args)
    if (a.endsWith('*') && !(a.slice(0, -1) in v)) return `${c.name} needs the argument ${a.slice(0, -1)}.`;
  return v as Record<string, unknown>;
}

export function StepsDialog({ kind, n, close }: { kind: Kind; n: Machine; close: () => void }) {
  const caps = useRead<{ interfaces: { kind: string; name: string; steps: Known[] }[] }>(may('driver:get') ? '/ingot/v1/capabilities' : null);
  const known = useMemo(() => {
    const of = new Map<string, Known>();
    for (const i of caps.value?.interfaces ?? [])
      // The agent's own steps come with whichever interface leads to it.
      if (n[i.kind + '_interface'] === i.name) for (const s of i.steps) if (kind in s.phases) of.set(`${s.interface}.${s.step}`, s);
    return of;
  }, [caps.value]);
  const [steps, set] = useState<Chosen[]>([{ name: '', args: '' }]);
  const [plan, setPlan] = useState<Plan | null>(null);
  const [fault, setFault] = useState('');
  const [busy, setBusy] = useState(false);
  const edit = (i: number, change: Partial<Chosen>) => {
    set(steps.map((s, k) => (k === i ? { ...s, ...change } : s)));
    setPlan(null);
  };
  const move = (i: number, to: number) => {
    const list = [...steps];
    list.splice(to, 0, ...list.splice(i, 1));
    set(list);
    setPlan(null);
  };
  // body is the request; a text says why it is wrong.
  const body = (): Record<string, unknown> | string => {
    const out = [];
    for (const s of steps) {
      const [iface, step] = s.name.trim().split('.');
      if (!iface || !step) return 'Choose a step, as deploy.erase_devices_metadata, or remove the line.';
      const args = argsOf(s, known.get(s.name.trim()));
      if (typeof args === 'string') return args;
      out.push({ interface: iface, step, args });
    }
    return { target: kind, [kind + '_steps']: out };
  };
  const send = async (path: string, method: string, then: (v: Plan) => void) => {
    const b = body();
    if (typeof b === 'string') return setFault(b);
    setFault('');
    setBusy(true);
    try {
      then(await ask<Plan>(path, { method, body: b }));
    } catch (err) {
      setFault((err as Error).message);
    }
    setBusy(false);
  };
  const title = kind === 'clean' ? 'Clean' : 'Service';
  const name = quote(nameOf(n));
  const made = body();
  const json = typeof made === 'string' ? 'STEPS' : JSON.stringify(made[kind + '_steps']);
  const lines = steps.map((s) => ' --step ' + quote((s.name || 'INTERFACE.STEP') + (s.args.trim() ? '=' + s.args.trim() : ''))).join('');
  return (
    <Dialog title={`${title}: ${nameOf(n)}`} close={close} wide>
      <form
        onSubmit={(e) => {
          e.preventDefault();
          void send(`/ingot/v1/nodes/${n.uuid}/plan`, 'POST', setPlan);
        }}
      >
        <p>
          {kind === 'clean'
            ? 'The steps run in this order, and the machine is manageable again. A step that erases does so without a further question.'
            : 'The machine, which is in use, is restarted for these steps and then goes on.'}
        </p>
        <datalist id="known-steps">
          {[...known.keys()].sort().map((k) => (
            <option key={k} value={k} />
          ))}
        </datalist>
        <ol class="step-list">
          {steps.map((s, i) => {
            const args = known.get(s.name.trim())?.args ?? [];
            return (
              <li key={i}>
                <Field label={`Step ${i + 1}`}>
                  {(id) => (
                    <input id={id} list="known-steps" value={s.name} onInput={(e) => edit(i, { name: e.currentTarget.value })} autocomplete="off" spellcheck={false} />
                  )}
                </Field>
                <Field label={`Arguments of step ${i + 1}`} hint={args.length ? `It takes ${args.join(', ')}` : 'JSON; empty: none.'}>
                  {(id) => <input id={id} value={s.args} onInput={(e) => edit(i, { args: e.currentTarget.value })} autocomplete="off" spellcheck={false} />}
                </Field>
                <span class="buttons">
                  <button type="button" disabled={i === 0} aria-label={`Move step ${i + 1} up`} onClick={() => move(i, i - 1)}>
                    ↑
                  </button>
                  <button
                    type="button"
                    disabled={steps.length === 1}
                    aria-label={`Remove step ${i + 1}`}
                    onClick={() => {
                      set(steps.filter((_, k) => k !== i));
                      setPlan(null);
                    }}
                  >
                    ×
                  </button>
                </span>
              </li>
            );
          })}
        </ol>
        <button
          type="button"
          onClick={() => {
            set([...steps, { name: '', args: '' }]);
            setPlan(null);
          }}
        >
          Add a step
        </button>
        <details>
          <summary>The same in a shell</summary>
          <Command text={`ingot node ${kind} ${name}${lines}`} />
          <Command text={`openstack baremetal node ${kind} ${name} --${kind}-steps ${quote(json)}`} />
        </details>
        <Fault text={fault} />
        {plan && <PlanCard plan={plan} args />}
        <PlanButtons checked={!!plan} busy={busy} close={close}>
          {plan && !plan.refused && (
            <button type="button" class="main danger" disabled={busy} onClick={() => void send(`/v1/nodes/${n.uuid}/states/provision`, 'PUT', close)}>
              {title} {nameOf(n)}
            </button>
          )}
        </PlanButtons>
      </form>
    </Dialog>
  );
}
