// Virtual media: what is in the drives of a machine's controller.
import { useState } from 'preact/hooks';
import { ask, may } from './api';
import { nameOf } from './actions';
import type { Machine } from './machine';
import { Loaded, useRead } from './read';
import { Card, Command, Fault, Field } from './parts';
import { quote } from './format';

interface Media {
  media_types: string[]; // as Redfish names them: CD, DVD, USBStick
  inserted: boolean;
  image: string | null;
}

const devices = ['cdrom', 'floppy', 'disk'];

export function MediaTab({ n }: { n: Machine }) {
  const read = useRead<Media[]>(`/v1/nodes/${n.uuid}/vmedia`, n.updated_at);
  const [device, setDevice] = useState('cdrom');
  const [url, setURL] = useState('');
  const [fault, setFault] = useState('');
  const [done, setDone] = useState('');
  const act = async (method: string, path: string, body: unknown, text: string) => {
    setFault('');
    setDone('');
    try {
      await ask(`/v1/nodes/${n.uuid}/vmedia${path}`, { method, body });
      setDone(text);
      read.again();
    } catch (err) {
      setFault((err as Error).message);
    }
  };
  const name = quote(nameOf(n));
  return (
    <div class="columns">
      <Card title="In the drives">
        <Loaded of={read}>
          {(list) =>
            list.length === 0 ? (
              <p class="hint">The controller reports no drives. Some have them only with a licence, or after virtual media were switched on in its settings.</p>
            ) : (
              <ul class="plain-list">
                {list.map((m, i) => (
                  <li key={i} class="words">
                    {m.media_types.join(', ')}: {m.inserted ? <code>{m.image ?? 'an image'}</code> : 'empty'}
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
        {may('node:vmedia:detach', n) && (
          <>
            <Command text={`openstack baremetal node vmedia detach ${name}`} />
            <button type="button" onClick={() => act('DELETE', '', undefined, 'The controller was asked to take all media out.')}>
              Take all out
            </button>
          </>
        )}
      </Card>
      {may('node:vmedia:attach', n) && (
        <Card title="Put one in">
          <form
            onSubmit={(e) => {
              e.preventDefault();
              void act('POST', '', { device_type: device, image_url: url }, 'The controller was asked to fetch the image.');
            }}
          >
            <Field label="Drive">
              {(id) => (
                <select id={id} value={device} onChange={(e) => setDevice(e.currentTarget.value)}>
                  {devices.map((d) => (
                    <option key={d}>{d}</option>
                  ))}
                </select>
              )}
            </Field>
            <Field label="Image" hint="An address that the controller can reach.">
              {(id) => (
                <input id={id} type="url" required value={url} onInput={(e) => setURL(e.currentTarget.value)} autocomplete="off" />
              )}
            </Field>
            <Command text={`openstack baremetal node vmedia attach ${name} ${device} ${quote(url || 'URL')}`} />
            <button type="submit" class="main">
              Put it in
            </button>
          </form>
        </Card>
      )}
      <div class="wide" role="status">
        {done}
        <Fault text={fault} />
      </div>
    </div>
  );
}
