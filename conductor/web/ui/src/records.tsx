// Who did what with a machine, and what its hardware says of itself.
import { useEffect, useState } from 'preact/hooks';
import type { Machine } from './machine';
import { Loaded, useRead } from './read';
import { Card, Empty, Facts, Fault, Sign, Table, Time } from './parts';
import { size } from './format';

interface Entry {
  uuid: string;
  created_at: string;
  severity: string;
  event_type: string;
  event: string;
  user: string | null;
  project: string | null;
  conductor: string | null;
  state: string | null;
}

export function HistoryTab({ n }: { n: Machine }) {
  const read = useRead<{ history: Entry[] }>(
    `/v1/nodes/${n.uuid}/history?detail=true&sort_dir=desc&sort_key=created_at&limit=500`,
    [n.provision_state, n.power_state, n.maintenance].join(),
  );
  return (
    <Card title="Who did what" wide>
      <Loaded of={read}>
        {(v) =>
          v.history.length === 0 ? (
            <Empty title="Nothing has happened yet.">
              <p>Each change of its record, its state or its power is a line here, with its user.</p>
            </Empty>
          ) : (
            <Table heads={['When', 'Who', 'What', 'Kind', 'State']} stack>
              {v.history.map((h) => (
                <tr key={h.uuid}>
                  <td data-name="When" class="num">
                    <Time at={h.created_at} />
                  </td>
                  <td data-name="Who">{h.user ?? <span class="hint">{h.conductor}</span>}</td>
                  <td data-name="What" class="words">
                    {h.severity === 'ERROR' && <Sign kind="failed" />}
                    {h.severity === 'WARNING' && <Sign kind="attention" />} {h.event}
                  </td>
                  <td data-name="Kind">{h.event_type}</td>
                  <td data-name="State">{h.state ?? '–'}</td>
                </tr>
              ))}
            </Table>
          )
        }
      </Loaded>
    </Card>
  );
}

interface Health {
  health: string | null;
  read_at: string | null;
  tried_at: string | null;
  error: string | null;
  failing_parts: { kind: string; name: string; health: string | null; predicted: boolean }[];
  sensors: { name: string; kind: string; value: number | null; unit: string; upper_critical: number | null; health: string | null }[];
  log: { id: string; time: string | null; severity: string | null; message: string }[];
}

const unitText: Record<string, string> = { Cel: '°C', RPM: 'rpm', '%': '%', V: 'V', W: 'W', A: 'A' };

export function HealthTab({ n }: { n: Machine }) {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const t = setInterval(() => setTurn((x) => x + 1), 10000); // a reading is no change of the node, and so no event
    return () => clearInterval(t);
  }, []);
  const read = useRead<Health>(`/ingot/v1/nodes/${n.uuid}/health`, `${n.health} ${turn}`);
  return (
    <Loaded of={read} missing={<Empty title="The controller was not asked about its machine yet."><p>It is asked once the machine is managed, over Redfish.</p></Empty>}>
      {(h) =>
        !h.read_at && !h.error && h.sensors.length === 0 ? (
          <Empty title="Nothing is known of this machine's health.">
            <p>
              Controllers with Redfish are asked every few minutes (<code>health.interval</code>); others have no such answer.
            </p>
          </Empty>
        ) : (
          <div class="columns">
            <Card title="Health">
              <Fault text={h.error ?? ''} />
              <Facts
                of={[
                  ['Machine', h.health],
                  ['Read', <Time at={h.read_at} />],
                  ['Last try', <Time at={h.tried_at} />],
                ]}
              />
              {h.failing_parts.length > 0 && (
                <ul class="plain-list">
                  {h.failing_parts.map((p) => (
                    <li key={p.kind + p.name}>
                      <Sign kind={p.health === 'Critical' ? 'failed' : 'attention'} /> {p.kind} {p.name}: {p.health ?? 'not well'}
                      {p.predicted && ', a failure is predicted'}
                    </li>
                  ))}
                </ul>
              )}
            </Card>
            <Card title="Sensors">
              <table>
                <tbody>
                  {h.sensors.map((s) => (
                    <tr key={s.kind + s.name}>
                      <th scope="row">{s.name}</th>
                      <td class="num">
                        {s.value === null ? '–' : `${s.value} ${unitText[s.unit] ?? s.unit}`}
                      </td>
                      <td class="hint num">{s.upper_critical !== null && `critical from ${s.upper_critical}`}</td>
                      <td>{s.health && s.health !== 'OK' ? <Sign kind={s.health === 'Critical' ? 'failed' : 'attention'} /> : ''}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </Card>
            <Card title="The controller's log" wide>
              {h.log.length === 0 && <p class="hint">It is empty.</p>}
              <ul class="plain-list">
                {h.log.map((e) => (
                  <li key={e.id} class="words">
                    <Time at={e.time} /> {e.severity} {e.message}
                  </li>
                ))}
              </ul>
            </Card>
          </div>
        )
      }
    </Loaded>
  );
}

export function SettingsTab({ n }: { n: Machine }) {
  const bios = useRead<{ bios: { name: string; value: string | null; attribute_type?: string; read_only?: boolean }[] }>(
    `/v1/nodes/${n.uuid}/bios?detail=true`,
  );
  const firmware = useRead<{
    firmware: { component: string; initial_version: string; current_version: string; last_version_flashed: string | null; updated_at: string | null }[];
  }>(`/v1/nodes/${n.uuid}/firmware`);
  return (
    <div class="columns">
      <Card title="Firmware">
        <Loaded of={firmware}>
          {(v) =>
            v.firmware.length === 0 ? (
              <p class="hint">No versions are known; an inspection over Redfish finds them.</p>
            ) : (
              <table>
                <thead>
                  <tr>
                    <th>Component</th>
                    <th>Version</th>
                    <th>At first</th>
                  </tr>
                </thead>
                <tbody>
                  {v.firmware.map((f) => (
                    <tr key={f.component}>
                      <th scope="row">{f.component}</th>
                      <td>{f.current_version ?? '–'}</td>
                      <td>{f.initial_version ?? '–'}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )
          }
        </Loaded>
      </Card>
      <Card title="BIOS settings">
        <Loaded of={bios}>
          {(v) =>
            v.bios.length === 0 ? (
              <p class="hint">No settings are known; controllers with Redfish report them when the machine is managed.</p>
            ) : (
              <table>
                <tbody>
                  {v.bios.map((b) => (
                    <tr key={b.name}>
                      <th scope="row" class="words">
                        {b.name}
                      </th>
                      <td class="words">{b.value ?? '–'}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )
          }
        </Loaded>
      </Card>
    </div>
  );
}

interface Erasure {
  uuid: string;
  received_at: string;
  step: string;
  disk: string;
  serial: string;
  model: string;
  size: number;
  method: string | null;
  level: string;
  result: string;
  error: string | null;
}

// Erasures are the signed reports of erased disks, to download and to verify.
export function Erasures({ n }: { n: Machine }) {
  const read = useRead<{ erasures: Erasure[] }>(`/ingot/v1/nodes/${n.uuid}/erasures`, n.provision_state);
  return (
    <Card title="Erased disks" wide>
      <Loaded of={read}>
        {(v) =>
          v.erasures.length === 0 ? (
            <p class="hint">No disk of this machine was erased since its reports are kept.</p>
          ) : (
            <Table heads={['When', 'Disk', 'Serial', 'Size', 'How', 'Result']} stack>
              {v.erasures.map((e) => (
                <tr key={e.uuid}>
                  <td data-name="When" class="num">
                    <Time at={e.received_at} />
                  </td>
                  <td data-name="Disk">
                    {e.disk} {e.model}
                  </td>
                  <td data-name="Serial">{e.serial}</td>
                  <td data-name="Size" class="num">
                    {size(e.size)}
                  </td>
                  <td data-name="How">
                    {e.level} {e.method && `(${e.method})`}
                  </td>
                  <td data-name="Result" class="words">
                    <Sign kind={e.result === 'erased' || e.result === 'done' || e.result === 'ok' ? 'active' : 'failed'} /> {e.result} {e.error}
                  </td>
                </tr>
              ))}
            </Table>
          )
        }
      </Loaded>
    </Card>
  );
}
