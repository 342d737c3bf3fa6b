import { useState } from 'preact/hooks';
import { begin, session, signIn } from './api';
import { useStore } from './store';
import { Fault, Field } from './parts';

export function SignIn() {
  const s = useStore(session)!;
  const [by, setBy] = useState<'password' | 'token'>('password');
  const [fault, setFault] = useState('');
  const [busy, setBusy] = useState(false);
  const keystone = s.auth === 'keystone';

  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const data = new FormData(e.currentTarget as HTMLFormElement);
    const text = (name: string) => String(data.get(name) ?? '');
    setBusy(true);
    setFault('');
    try {
      if (!keystone) await signIn({ user: text('user'), password: text('password') });
      else if (by === 'token') await signIn({ token: text('token').trim() });
      else
        await signIn({
          user: text('user'),
          password: text('password'),
          user_domain: text('user_domain'),
          system: text('scope') === 'system',
          project: text('scope') === 'system' ? '' : text('project'),
          project_domain: text('scope') === 'system' ? '' : text('user_domain'),
        });
    } catch (err) {
      setFault((err as Error).message);
      setBusy(false);
    }
  };

  if (s.auth === 'none')
    return (
      <main class="signin">
        <div class="card">
          <h1>Ingot</h1>
          <p>{s.ended ? 'Your session has ended.' : 'You have signed out.'} This server asks for no password.</p>
          <button type="button" class="main" onClick={() => void begin().catch((e) => setFault(e.message))}>
            Go on
          </button>
          <Fault text={fault} />
        </div>
      </main>
    );
  return (
    <main class="signin">
      <form class="card" onSubmit={submit}>
        <h1>Ingot</h1>
        {s.ended && <p role="status">Your session has ended. Sign in to go on where you were.</p>}
        {keystone && (
          <fieldset class="choice">
            <legend>Sign in to Keystone with</legend>
            <label>
              <input type="radio" name="by" checked={by === 'password'} onChange={() => setBy('password')} /> a password
            </label>
            <label>
              <input type="radio" name="by" checked={by === 'token'} onChange={() => setBy('token')} /> a token
            </label>
          </fieldset>
        )}
        {keystone && by === 'token' ? (
          <Field label="Token" hint="As openstack token issue prints it.">
            {(id) => <input id={id} name="token" type="password" autocomplete="off" required />}
          </Field>
        ) : (
          <>
            <Field label="User">
              {(id) => <input id={id} name="user" autocomplete="username" required autofocus />}
            </Field>
            <Field label="Password">
              {(id) => <input id={id} name="password" type="password" autocomplete="current-password" required />}
            </Field>
          </>
        )}
        {keystone && by === 'password' && (
          <>
            <Field label="Domain" hint="Empty: the default domain.">
              {(id) => <input id={id} name="user_domain" autocomplete="off" />}
            </Field>
            <fieldset class="choice">
              <legend>Roles in</legend>
              <label>
                <input type="radio" name="scope" value="project" checked /> a project
              </label>
              <label>
                <input type="radio" name="scope" value="system" /> the system
              </label>
            </fieldset>
            <Field label="Project" hint="Empty: the user's default project.">
              {(id) => <input id={id} name="project" autocomplete="off" />}
            </Field>
          </>
        )}
        <Fault text={fault} />
        <button type="submit" class="main" disabled={busy}>
          {busy ? 'Signing in …' : 'Sign in'}
        </button>
      </form>
    </main>
  );
}
