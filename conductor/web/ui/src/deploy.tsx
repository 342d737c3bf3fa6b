// The form to deploy a machine: the image, who may log in, the config drive; checked before anything is written.
import { useState } from 'preact/hooks';
import { access, ask, may } from './api';
import { nameOf } from './actions';
import type { Machine } from './machine';
import { Command, Dialog, Facts, Fault, Field, Sign } from './parts';
import { useRead } from './read';
import { type Plan, PlanButtons, PlanCard } from './plan';
import { plural, quote, size } from './format';
import { json, networkData, userData } from './drive';
import { Network } from './vifs';

interface Form {
  image: string;
  checksum: string;
  hostname: string;
  key: string;
  user: string; // user data
  network: string; // network data, JSON
  meta: string; // further meta data, JSON
}

interface Check {
  plan: Plan;
  bad: [string, string][]; // interfaces and why they are not ready
}

const info = ['image_checksum', 'image_os_hash_algo', 'image_os_hash_value', 'image_disk_format'];

// faults are what can be said of a form without asking anybody.
function faults(f: Form, macs: string[]): Partial<Record<keyof Form, string>> {
  const out: Partial<Record<keyof Form, string>> = {};
  if (!f.image.trim()) out.image = 'Give the address of the image, or the name of a file that the conductor serves.';
  if (!f.checksum.trim()) out.checksum = 'Give the digest: without it a damaged image, or another one, would be written.';
  else if (!/^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}|https?:\/\/\S+)$/i.test(f.checksum.trim()))
    out.checksum = 'Write sha256: and 64 hexadecimal digits, sha512: and 128, or the address of a file of sums.';
  if (f.hostname && !/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$/i.test(f.hostname))
    out.hostname = 'A host name has letters, digits, hyphens and dots.';
  for (const line of f.key.split('\n').filter((l) => l.trim()))
    if (!/^(ssh-(rsa|ed25519)|ecdsa-sha2-\S+|sk-\S+) [A-Za-z0-9+/=]+( .*)?$/.test(line.trim()))
      out.key = `This is no public key as ssh-keygen writes it: ${line.slice(0, 30)} …`;
  const user = userData(f.user);
  if (user) out.user = user;
  const network = networkData(f.network, macs);
  if (network) out.network = network;
  const meta = f.meta.trim() ? json(f.meta) : {};
  if (typeof meta === 'string') out.meta = meta;
  return out;
}

// drive is the config drive as the API takes it: null for none.
function drive(f: Form): Record<string, unknown> | null {
  const keys = f.key.split('\n').map((l) => l.trim()).filter(Boolean);
  const meta: Record<string, unknown> = f.meta.trim() ? JSON.parse(f.meta) : {};
  if (f.hostname) meta.hostname = f.hostname;
  if (keys.length) meta.public_keys = Object.fromEntries(keys.map((k, i) => [`key-${i}`, k]));
  const out: Record<string, unknown> = {};
  if (Object.keys(meta).length) out.meta_data = meta;
  if (f.user) out.user_data = f.user;
  if (f.network.trim()) out.network_data = JSON.parse(f.network);
  return Object.keys(out).length ? out : null;
}

function patch(n: Machine, f: Form) {
  const now: Record<string, string> = { image_source: f.image.trim() };
  const sum = f.checksum.trim();
  if (/^https?:/i.test(sum)) now.image_checksum = sum;
  else [now.image_os_hash_algo, now.image_os_hash_value] = [sum.split(':')[0].toLowerCase(), sum.split(':')[1].toLowerCase()];
  return [
    ...info.filter((k) => k in (n.instance_info ?? {}) && !(k in now)).map((k) => ({ op: 'remove', path: '/instance_info/' + k })),
    ...Object.entries(now).map(([k, value]) => ({ op: 'add', path: '/instance_info/' + k, value })),
  ];
}

// deployable reports whether the form is offered, and with which verb.
export function deployable(n: Machine): 'active' | 'rebuild' | null {
  if (!may('node:set_provision_state', n) || !may('node:update_instance_info', n)) return null;
  const verbs = access.value?.verbs[n.provision_state] ?? [];
  return verbs.includes('active') ? 'active' : verbs.includes('rebuild') ? 'rebuild' : null;
}

export function Deploy({ n, close }: { n: Machine; close: () => void }) {
  const verb = deployable(n) ?? 'active';
  const was = n.instance_info ?? {};
  const [f, set] = useState<Form>({
    image: was.image_source ?? '',
    checksum: was.image_os_hash_value ? `${was.image_os_hash_algo}:${was.image_os_hash_value}` : (was.image_checksum ?? ''),
    hostname: n.name ?? '',
    key: '',
    user: '',
    network: '',
    meta: '',
  });
  const ports = useRead<{ ports: { address: string }[] }>(may('port:list') ? `/v1/ports?node=${n.uuid}&fields=address` : null);
  const macs = (ports.value?.ports ?? []).map((p) => p.address.toLowerCase());
  const [report, setReport] = useState<Report | null>(null);
  const [tried, setTried] = useState(false);
  const [check, setCheck] = useState<Check | null>(null);
  const [fault, setFault] = useState('');
  const [busy, setBusy] = useState(false);
  const wrong = faults(f, macs);
  const change = (k: keyof Form) => (e: Event) => {
    set({ ...f, [k]: (e.currentTarget as HTMLInputElement).value });
    setCheck(null);
    if (k === 'image') setReport(null);
  };
  // What the config drive has is checked as it is written; the rest once somebody tries.
  const hint = (k: keyof Form, text: string) =>
    wrong[k] && (tried || ((k === 'user' || k === 'network' || k === 'meta') && f[k].trim())) ? <span class="bad">{wrong[k]}</span> : text;
  const inspect = async () => {
    setBusy(true);
    setFault('');
    try {
      setReport(await ask<Report>(`/ingot/v1/nodes/${n.uuid}/image_check`, { method: 'POST', body: { image_source: f.image.trim() } }));
    } catch (err) {
      setFault((err as Error).message);
    }
    setBusy(false);
  };

  const look = async (e: Event) => {
    e.preventDefault();
    setTried(true);
    if (Object.keys(wrong).length) return;
    setBusy(true);
    setFault('');
    try {
      await ask(`/v1/nodes/${n.uuid}`, { method: 'PATCH', body: patch(n, f) });
      const body = { target: verb, ...(drive(f) && { configdrive: drive(f) }) };
      const [plan, valid] = await Promise.all([
        ask<Plan>(`/ingot/v1/nodes/${n.uuid}/plan`, { method: 'POST', body }),
        ask<Record<string, { result: boolean | null; reason?: string }>>(`/v1/nodes/${n.uuid}/validate`),
      ]);
      setCheck({
        plan,
        bad: Object.entries(valid)
          .filter(([, v]) => v.result === false)
          .map(([k, v]) => [k, v.reason ?? 'not ready']),
      });
    } catch (err) {
      setFault((err as Error).message);
    }
    setBusy(false);
  };
  const deploy = async () => {
    setBusy(true);
    setFault('');
    try {
      await ask(`/v1/nodes/${n.uuid}/states/provision`, {
        method: 'PUT',
        body: { target: verb, ...(drive(f) && { configdrive: drive(f) }) },
      });
      close();
    } catch (err) {
      setFault((err as Error).message);
      setBusy(false);
    }
  };
  const name = quote(nameOf(n));
  const ingot =
    `ingot node deploy ${name} --image ${quote(f.image || 'URL')} --checksum ${quote(f.checksum || 'sha256:HEX')}` +
    (f.hostname ? ` --hostname ${quote(f.hostname)}` : '') +
    (f.key.trim() ? ' --ssh-key FILE' : '') +
    (f.user ? ' --user-data FILE' : '') +
    (f.network.trim() ? ' --network-data FILE' : '') +
    (verb === 'rebuild' ? ' --rebuild' : '');
  const [algo, value] = f.checksum.split(':');
  const openstack =
    `openstack baremetal node set ${name} --instance-info image_source=${quote(f.image || 'URL')}` +
    (value && !/^https?$/i.test(algo)
      ? ` --instance-info image_os_hash_algo=${quote(algo)} --instance-info image_os_hash_value=${quote(value)}`
      : ` --instance-info image_checksum=${quote(f.checksum || 'URL')}`) +
    `\nopenstack baremetal node ${verb === 'rebuild' ? 'rebuild' : 'deploy'} ${name}` +
    (drive(safe(f, macs)) ? ` --config-drive ${quote(JSON.stringify(drive(safe(f, macs))))}` : '');
  return (
    <Dialog title={`${verb === 'rebuild' ? 'Rebuild' : 'Deploy'}: ${nameOf(n)}`} close={close} wide>
      <form onSubmit={look}>
        {verb === 'rebuild' && n.provision_state === 'active' && (
          <p class="bad">This writes over the system that the machine runs now.</p>
        )}
        <Field label="Image" hint={hint('image', 'http(s)://…, oci://…, or the name of a file that the conductor serves.')}>
          {(id) => <input id={id} value={f.image} onInput={change('image')} autocomplete="off" spellcheck={false} />}
        </Field>
        <p>
          <button type="button" disabled={busy || !f.image.trim()} onClick={() => void inspect()}>
            Look at the image
          </button>
        </p>
        {report && <ImageReport of={report} disk={Number(n.properties?.local_gb ?? 0)} />}
        <Field label="Digest" hint={hint('checksum', 'sha256:…, sha512:…, or the address of a file of sums.')}>
          {(id) => <input id={id} value={f.checksum} onInput={change('checksum')} autocomplete="off" spellcheck={false} />}
        </Field>
        <Field label="Host name" hint={hint('hostname', 'Of the system; empty: none.')}>
          {(id) => <input id={id} value={f.hostname} onInput={change('hostname')} autocomplete="off" />}
        </Field>
        <Field label="SSH keys" hint={hint('key', 'Public keys that may log in, one in a line.')}>
          {(id) => <textarea id={id} rows={2} value={f.key} onInput={change('key')} spellcheck={false} />}
        </Field>
        <details>
          <summary>More of the config drive</summary>
          <Field label="User data" hint={hint('user', 'For cloud-init.')}>
            {(id) => <textarea id={id} rows={7} class="mono" placeholder={'#cloud-config\npackages:\n  - nginx'} value={f.user} onInput={change('user')} spellcheck={false} />}
          </Field>
          <Field label="Network data" hint={hint('network', "OpenStack's network_data.json. Empty: DHCP.")}>
            {(id) => <textarea id={id} rows={5} class="mono" value={f.network} onInput={change('network')} spellcheck={false} />}
          </Field>
          <Field label="Meta data" hint={hint('meta', 'A JSON object beside host name and keys.')}>
            {(id) => <textarea id={id} rows={3} class="mono" value={f.meta} onInput={change('meta')} spellcheck={false} />}
          </Field>
        </details>
        <details>
          <summary>Network</summary>
          <Network n={n} />
        </details>
        <details>
          <summary>The same in a shell</summary>
          <Command text={ingot} />
          <Command text={openstack} />
        </details>
        <Fault text={fault} />
        {check && (
          <PlanCard plan={check.plan}>
            {check.bad.map(([k, why]) => (
              <p key={k} class="words">
                <Sign kind="attention" /> {k}: {why}
              </p>
            ))}
          </PlanCard>
        )}
        <PlanButtons checked={!!check} busy={busy} close={close}>
          {check && (
            <button type="button" class={verb === 'rebuild' ? 'main danger' : 'main'} disabled={busy} onClick={deploy}>
              {verb === 'rebuild' ? 'Rebuild' : 'Deploy'} {nameOf(n)}
            </button>
          )}
        </PlanButtons>
      </form>
    </Dialog>
  );
}

// safe is a form whose JSON can be read.
function safe(f: Form, macs: string[]): Form {
  const wrong = faults(f, macs);
  return { ...f, network: wrong.network ? '' : f.network, meta: wrong.meta ? '' : f.meta };
}

interface Report {
  deployable: boolean;
  kind?: string;
  reason?: string;
  remedy?: string;
  notes?: string[] | null;
  format?: string;
  compression?: string;
  file_size: number;
  virtual_size?: number;
  table?: { kind: string; partitions: { number: number; size: number; type: string; name?: string }[] | null } | null;
  published?: { disk_sha256: string } | null;
}

const kindText: Record<string, string> = { 'whole-disk': 'a whole disk', partition: 'a partition', published: 'a published image' };

// ImageReport says what the conductor found at an image's address, by its beginning and its tables.
function ImageReport({ of: r, disk }: { of: Report; disk: number }) {
  const large = !!r.virtual_size && !!disk && r.virtual_size > (disk + 1) * 2 ** 30;
  return (
    <div class="report" role="status">
      <p class="words">
        <Sign kind={!r.deployable ? 'failed' : large ? 'attention' : 'active'} />{' '}
        {!r.deployable ? `It can't be deployed: ${r.reason}.` : large ? `It is larger than the root disk, of ${disk} GiB.` : 'It can be deployed, judging by its beginning.'}
        {r.remedy && ` What to do: ${r.remedy}.`}
      </p>
      <Facts
        of={(
          [
            ['Image of', kindText[r.kind ?? '']],
            ['Format', [r.format, r.compression].filter(Boolean).join(', ')],
            ['File', r.file_size > 0 ? size(r.file_size) : null],
            ['Disk', r.virtual_size ? size(r.virtual_size) : null],
            ['Partitions', r.table ? `${r.table.kind.toUpperCase()}, ${plural(r.table.partitions?.length ?? 0, 'partition')}` : null],
          ] as [string, string | null][]
        ).filter(([, v]) => v)}
      />
      {(r.notes ?? []).map((t) => (
        <p key={t} class="hint words">
          {t}
        </p>
      ))}
    </div>
  );
}
