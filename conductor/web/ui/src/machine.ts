// What the API shows of a machine.

// Transfer is how far a step with data has come.
export interface Transfer {
  step: string;
  phase: string;
  bytes: number;
  total: number;
  rate: number;
  at: string;
}

// Row is a machine in a list.
export interface Row {
  uuid: string;
  name: string | null;
  provision_state: string;
  target_provision_state: string | null;
  provision_updated_at: string | null;
  power_state: string | null;
  target_power_state: string | null;
  maintenance: boolean;
  maintenance_reason: string | null;
  fault: string | null;
  health: string | null;
  last_error: string | null;
  resource_class: string | null;
  driver: string;
  owner: string | null;
  lessee: string | null;
  conductor: string | null;
  instance_name: string | null;
  instance_uuid: string | null;
  protected: boolean;
  retired: boolean;
  progress?: Transfer;
  words?: string; // what a search looks at, in lower case
}

// Machine is a node with all that the API shows of it.
export interface Machine extends Row {
  created_at: string | null;
  updated_at: string | null;
  description: string | null;
  extra: Record<string, unknown>;
  properties: Record<string, any>;
  driver_info: Record<string, any>;
  driver_internal_info: Record<string, any>;
  instance_info: Record<string, any>;
  traits: string[];
  boot_mode: string | null;
  secure_boot: boolean | null;
  conductor_group: string | null;
  reservation: string | null;
  inspection_finished_at: string | null;
  chassis_uuid: string | null;
  console_enabled: boolean;
  [key: string]: any;
}
