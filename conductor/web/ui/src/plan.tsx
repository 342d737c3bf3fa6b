// What the conductor says it would do, in the dialogs that have it checked before it is asked for.
import type { ComponentChildren } from 'preact';
import { Card, Fault } from './parts';

export interface Plan {
  refused: string | null;
  steps: { interface: string; step: string; args?: Record<string, unknown> }[];
}

// PlanCard shows a plan; args: with the arguments of its steps.
export function PlanCard({ plan, args, children }: { plan: Plan; args?: boolean; children?: ComponentChildren }) {
  return (
    <Card title="What will happen">
      {children}
      <Fault text={plan.refused ?? ''} />
      <ol class="steps">
        {plan.steps.map((s, i) => (
          <li key={i} class="words">
            {s.interface}.{s.step} {args && s.args && Object.keys(s.args).length > 0 && <code>{JSON.stringify(s.args)}</code>}
          </li>
        ))}
      </ol>
    </Card>
  );
}

// PlanButtons are those of such a dialog; the children are for what has been checked.
export function PlanButtons({ checked, busy, close, children }: { checked: boolean; busy: boolean; close: () => void; children: ComponentChildren }) {
  return (
    <footer>
      <button type="button" onClick={close}>
        Cancel
      </button>
      <button type="submit" class={checked ? '' : 'main'} disabled={busy}>
        Check
      </button>
      {children}
    </footer>
  );
}
