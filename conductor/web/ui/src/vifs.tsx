// The networks of a machine: which network interface it uses, and the virtual interfaces that are attached to it.
import { useState } from 'preact/hooks';
import { ask, may } from './api';
import { nameOf } from './actions';
import type { Machine } from './machine';
import { Loaded, useRead } from './read';
import { Command, Fault, Field } from './parts';
import { quote } from './format';

const interfaces: Record<string, string> = {
  noop: 'noop: switches are left alone, and the instance gets its addresses from its own network.',
  flat: 'flat: the instance stays on the provisioning network.',
  neutron: 'neutron: Neutron moves the ports between the provisioning network and that of the instance.',
};

export function Network({ n }: { n: Machine }) {
  const list = useRead<{ vifs: { id: string }[] }>(may('node:vif:list', n) ? `/v1/nodes/${n.uuid}/vifs` : null);
  const [id, setID] = useState('');
  const [fault, setFault] = useState('');
  const kind = String(n.network_interface ?? '');
  const act = async (method: string, path: string, body?: unknown) => {
    setFault('');
    try {
      await ask(`/v1/nodes/${n.uuid}/vifs${path}`, { method, body });
      setID('');
      list.again();
    } catch (err) {
      setFault((err as Error).message);
    }
  };
  return (
    <>
      <p class="hint words">{interfaces[kind] ?? `Network interface ${kind}.`}</p>
      {may('node:vif:list', n) && (
        <Loaded of={list}>
          {(v) =>
            v.vifs.length === 0 ? (
              <p class="hint">No virtual interface is attached.</p>
            ) : (
              <ul class="plain-list">
                {v.vifs.map((x) => (
                  <li key={x.id} class="words">
                    <code>{x.id}</code>{' '}
                    {may('node:vif:detach', n) && (
                      <button type="button" onClick={() => void act('DELETE', '/' + encodeURIComponent(x.id))}>
                        Detach
                      </button>
                    )}
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
      )}
      {may('node:vif:attach', n) && kind !== 'noop' && (
        <>
          <Field label="Attach" hint="The UUID of a port of Neutron, or any name where there is no Neutron.">
            {(fid) => <input id={fid} value={id} onInput={(e) => setID(e.currentTarget.value)} autocomplete="off" spellcheck={false} />}
          </Field>
          <p>
            <button type="button" disabled={!id.trim()} onClick={() => void act('POST', '', { id: id.trim() })}>
              Attach it
            </button>
          </p>
          <Command text={`openstack baremetal node vif attach ${quote(nameOf(n))} ${quote(id.trim() || 'PORT')}`} />
        </>
      )}
      <Fault text={fault} />
    </>
  );
}
