// What an inspection found: disks, network cards with their switch ports, memory by slot, PCI devices; and which disk a
// deployment would take, and why.
import type { Machine } from './machine';
import { Loaded, useRead } from './read';
import { Card, Empty, Facts, Fault, Sign, Table } from './parts';
import { size } from './format';

interface Disk {
  name: string;
  model: string;
  size: number;
  rotational: boolean;
  serial: string;
  wwn: string | null;
  tran?: string;
  by_path: string | null;
}

interface Inventory {
  inventory: {
    interfaces?: { name: string; mac_address: string; has_carrier: boolean; speed_mbps?: number | null; driver?: string | null; ipv4_address?: string | null }[];
    cpu?: { model_name?: string; count?: number; architecture?: string; frequency?: string; socket_count?: number };
    disks?: Disk[];
    memory?: { total?: number; physical_mb?: number };
    system_vendor?: { product_name?: string; serial_number?: string; manufacturer?: string; firmware?: { vendor?: string; version?: string; build_date?: string } };
    boot?: { current_boot_mode?: string; secure_boot?: boolean | null };
    bmc_address?: string | null;
  };
  plugin_data: Record<string, any>;
}

interface RootDisk {
  hints_from: string;
  disks: { disk: Disk; fits: boolean; chosen: boolean; why: string }[];
  chosen: Disk | null;
  why?: string;
  error?: string;
  remedy?: string;
}

export function HardwareTab({ n }: { n: Machine }) {
  const inventory = useRead<Inventory>(`/v1/nodes/${n.uuid}/inventory`, n.inspection_finished_at);
  const ports = useRead<{ ports: any[] }>(`/v1/nodes/${n.uuid}/ports/detail`, n.updated_at);
  const root = useRead<RootDisk>(`/ingot/v1/nodes/${n.uuid}/root_disk`, n.inspection_finished_at);
  return (
    <Loaded
      of={inventory}
      missing={
        <Empty title="This machine was not inspected yet.">
          <p>
            An inspection finds disks, network cards, memory and more: choose <em>Inspect</em>, or{' '}
            <code>ingot node inspect {n.name ?? n.uuid}</code>
          </p>
        </Empty>
      }
    >
      {(v) => <Found n={n} v={v} ports={ports.value?.ports ?? []} root={root} />}
    </Loaded>
  );
}

function Found({ v, ports, root }: { n: Machine; v: Inventory; ports: any[]; root: ReturnType<typeof useRead<RootDisk>> }) {
  const i = v.inventory;
  const data = v.plugin_data ?? {};
  const lldp = data.parsed_lldp ?? {};
  const slots: Record<string, string>[] = data.dmi?.memory?.devices ?? []; // in the words of dmidecode
  const cards: any[] = data.accelerators ?? [];
  const pci: any[] = data.pci_devices ?? [];
  return (
    <div class="columns">
      <Card title="Machine">
        <Facts
          of={[
            ['Maker', i.system_vendor?.manufacturer],
            ['Product', i.system_vendor?.product_name],
            ['Serial number', i.system_vendor?.serial_number],
            ['Firmware', [i.system_vendor?.firmware?.vendor, i.system_vendor?.firmware?.version].filter(Boolean).join(' ')],
            ['Boot mode', i.boot?.current_boot_mode],
            ['Secure Boot', i.boot?.secure_boot === null || i.boot?.secure_boot === undefined ? null : i.boot.secure_boot ? 'on' : 'off'],
            ['Processors', i.cpu ? `${i.cpu.socket_count ?? 1} × ${i.cpu.model_name ?? ''}` : null],
            ['Threads', i.cpu?.count],
            ['Memory', i.memory?.physical_mb ? size(i.memory.physical_mb * 1048576) : null],
            ['Controller', i.bmc_address],
          ]}
        />
      </Card>
      <Card title="Root disk">
        <Loaded of={root}>
          {(r) => (
            <>
              {r.chosen ? (
                <p>
                  <strong>{r.chosen.name}</strong>, {size(r.chosen.size)}, {r.chosen.model}: {r.why}
                </p>
              ) : (
                <Fault text={[r.error, r.remedy].filter(Boolean).join('. ')} />
              )}
              <p class="hint">
                {r.hints_from === 'none'
                  ? 'No hints are set: without any it is the smallest disk of at least 4 GiB.'
                  : `The hints are root_device of the node's ${r.hints_from}.`}
              </p>
              <ul class="plain-list">
                {r.disks.map((d) => (
                  <li key={d.disk.name} class="words">
                    <Sign kind={d.chosen ? 'active' : 'idle'} /> {d.disk.name}: {d.why}
                  </li>
                ))}
              </ul>
            </>
          )}
        </Loaded>
      </Card>
      <Card title="Disks" wide>
        <Rows
          head={['Name', 'Size', 'Model', 'Serial', 'WWN', 'Kind', 'Path']}
          rows={(i.disks ?? []).map((d) => [
            d.name,
            size(d.size),
            d.model,
            d.serial,
            d.wwn,
            [d.tran, d.rotational ? 'rotating' : 'flash'].filter(Boolean).join(', '),
            d.by_path,
          ])}
        />
      </Card>
      <Card title="Network" wide>
        <Rows
          head={['Name', 'MAC address', 'Link', 'Switch', 'Switch port', 'Port of the node']}
          rows={(i.interfaces ?? []).map((nic) => {
            const at = lldp[nic.name] ?? {};
            const port = ports.find((p) => p.address?.toLowerCase() === nic.mac_address?.toLowerCase());
            return [
              nic.name,
              nic.mac_address,
              nic.has_carrier ? (nic.speed_mbps ? `${nic.speed_mbps / 1000} Gbit/s` : 'up') : 'down',
              at.switch_system_name ?? at.switch_chassis_id ?? port?.local_link_connection?.switch_info,
              at.switch_port_id ?? port?.local_link_connection?.port_id,
              port ? (port.pxe_enabled ? 'boots from the network' : 'yes') : 'none',
            ];
          })}
        />
      </Card>
      {slots.length > 0 && (
        <Card title="Memory" wide>
          <Rows
            head={['Slot', 'Size', 'Kind', 'Maker and part', 'Serial']}
            rows={slots.map((s) => [
              [s.Locator, s['Bank Locator']].filter(Boolean).join(', '),
              s.Size,
              [s.Type, s['Configured Memory Speed'] ?? s.Speed].filter(Boolean).join(', '),
              [s.Manufacturer, s['Part Number']].filter(Boolean).join(' '),
              s['Serial Number'],
            ])}
          />
        </Card>
      )}
      {cards.length > 0 && (
        <Card title="Accelerators">
          <Rows head={['Kind', 'Device', 'Address', 'Driver']} rows={cards.map((c) => [c.type, `${c.vendor_id}:${c.device_id}`, c.pci_address, c.driver])} />
        </Card>
      )}
      {pci.length > 0 && (
        <Card title="PCI devices">
          <details>
            <summary>{pci.length} devices</summary>
            <Rows head={['Address', 'Device', 'Class', 'Driver']} rows={pci.map((d) => [d.bus, `${d.vendor_id}:${d.product_id}`, d.class, d.driver])} />
          </details>
        </Card>
      )}
    </div>
  );
}

// Rows is a table whose rows become small lists where there is no room.
export function Rows({ head, rows }: { head: string[]; rows: unknown[][] }) {
  if (rows.length === 0) return <p class="hint">None were found.</p>;
  return (
    <Table heads={head} stack>
      {rows.map((r, i) => (
        <tr key={i}>
          {r.map((c, k) => (
            <td key={k} data-name={head[k]} class="words">
              {c === null || c === undefined || c === '' ? '–' : String(c)}
            </td>
          ))}
        </tr>
      ))}
    </Table>
  );
}
