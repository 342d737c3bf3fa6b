// Package metal3 tests Ingot as the Ironic of a BareMetalHost controller: the calls that the controller makes, in its
// order, with gophercloud, and what it expects of the answers. There is no Kubernetes; machines are simulated, with
// controllers that speak Redfish or IPMI.
package metal3
