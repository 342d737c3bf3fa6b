// What can be said of the parts of a config drive without asking a server. It finds slips of the hand; the system that
// reads the drive has the last word.

// userData says what is wrong with user data; '' if nothing is seen to be.
export function userData(text: string): string {
  if (!text.trim()) return '';
  if (/^\s+#/.test(text)) return 'The first line is indented or empty: cloud-init looks at the very beginning.';
  if (text.startsWith('#cloud-config')) return cloudConfig(text);
  if (text.startsWith('#!')) return /^#!\s*\/\S+/.test(text) ? '' : 'The first line of a script names its interpreter by its path, as #!/bin/sh.';
  if (/^(Content-Type:|MIME-Version:|#include|#cloud-config-archive|#cloud-boothook|#part-handler|## template:)/i.test(text)) return '';
  if (text.startsWith('{')) {
    const v = json(text); // Ignition
    return typeof v === 'string' ? v : 'ignition' in v ? '' : 'A JSON object is taken for Ignition, whose member "ignition" is missing.';
  }
  return 'User data begins with #cloud-config, #! and an interpreter, Content-Type: of MIME parts, or is Ignition as JSON.';
}

// cloudConfig looks at YAML line by line: for tabs, members without a colon, and quotes that are not closed.
function cloudConfig(text: string): string {
  const lines = text.split('\n');
  if (!/^#cloud-config\s*$/.test(lines[0])) return 'The first line is #cloud-config and nothing else.';
  let block = -1; // the indentation of a text in lines, which is not YAML
  let members = 0;
  for (let i = 1; i < lines.length; i++) {
    const line = lines[i].replace(/\r$/, '');
    const at = `Line ${i + 1}: `;
    const body = line.trim();
    if (!body) continue;
    const indent = line.length - line.trimStart().length;
    if (block >= 0 && indent > block) continue;
    block = -1;
    if (/^ *\t/.test(line)) return at + 'it is indented by a tab; YAML takes blanks only.';
    if (body.startsWith('#') || body === '---' || body === '...') continue;
    if (indent === 0 && !body.startsWith('- ') && !/^("[^"]*"|'[^']*'|[A-Za-z_][\w.-]*)\s*:(\s|$)/.test(body))
      return at + `"${body.slice(0, 30)}" is no member: write name: value.`;
    if (indent === 0 && /^[A-Za-z_][\w.-]*:\S/.test(body)) return at + 'a blank is missing after the colon.';
    if (indent === 0) members++;
    if (/[:-]\s*[|>][+-]?\d*\s*(#.*)?$/.test(body)) block = indent;
    else {
      const value = body.replace(/^(- )*([A-Za-z_][\w.-]*\s*:\s*)?/, '');
      if (/^"([^"\\]|\\.)*$/.test(value) && !lines[i + 1]?.startsWith(' ')) return at + 'a quote is not closed.';
      if (/^\[[^\]]*$/.test(value) && !lines.slice(i + 1).some((l) => l.includes(']'))) return at + 'a bracket is not closed.';
    }
  }
  return members ? '' : 'It has no members: nothing would be done.';
}

// json reads an object; a text is what is wrong with it.
export function json(text: string): Record<string, any> | string {
  try {
    const v = JSON.parse(text);
    return typeof v === 'object' && v !== null && !Array.isArray(v) ? v : 'This is no JSON object.';
  } catch (err) {
    return `This is no JSON: ${(err as Error).message}`;
  }
}

const kinds = ['ipv4', 'ipv6', 'ipv4_dhcp', 'ipv6_dhcp', 'ipv6_slaac', 'ipv6_dhcpv6-stateful', 'ipv6_dhcpv6-stateless'];
const v4 = /^((25[0-5]|2[0-4]\d|1?\d?\d)(\.|$)){4}$/;
const mac = /^([0-9a-f]{2}:){5}[0-9a-f]{2}$/i;

// networkData says what is wrong with OpenStack's network_data.json, of a machine with these network cards.
export function networkData(text: string, macs: string[]): string {
  if (!text.trim()) return '';
  const v = json(text);
  if (typeof v === 'string') return v;
  for (const k of ['links', 'networks', 'services']) if (k in v && !Array.isArray(v[k])) return `${k} is no list.`;
  if (!v.links?.length) return 'links is missing: which network cards there are, as {"id": "nic0", "type": "phy", "ethernet_mac_address": "…"}.';
  const ids = new Set<string>();
  for (const l of v.links) {
    if (!l?.id || !l.type) return 'Each of links has an id and a type (phy, bond, vlan).';
    if (ids.has(l.id)) return `Two links are called ${l.id}.`;
    ids.add(l.id);
    const a = l.ethernet_mac_address;
    if (l.type === 'phy' && !mac.test(a ?? '')) return `Link ${l.id}: ethernet_mac_address is no MAC address.`;
    if (l.type === 'phy' && macs.length && !macs.includes(a.toLowerCase())) return `Link ${l.id}: this machine has no port ${a}; it has ${macs.join(', ')}.`;
  }
  for (const l of v.links)
    for (const other of [...(l.bond_links ?? []), ...(l.vlan_link ? [l.vlan_link] : [])]) if (!ids.has(other)) return `Link ${l.id}: there is no link ${other}.`;
  for (const n of v.networks ?? []) {
    const name = n?.id ?? n?.link ?? 'of networks';
    if (!ids.has(n?.link)) return `Network ${name}: there is no link ${n?.link}.`;
    if (!kinds.includes(n.type)) return `Network ${name}: its type is one of ${kinds.join(', ')}.`;
    if (n.type === 'ipv4' && !v4.test(String(n.ip_address ?? '').split('/')[0])) return `Network ${name}: ip_address is no IPv4 address.`;
    if (n.type === 'ipv4' && !n.netmask && !String(n.ip_address).includes('/')) return `Network ${name}: netmask is missing.`;
    if (n.type === 'ipv6' && !String(n.ip_address ?? '').includes(':')) return `Network ${name}: ip_address is no IPv6 address.`;
    if (n.gateway) return `Network ${name}: a gateway is one of its routes, as {"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "…"}.`;
  }
  return '';
}
