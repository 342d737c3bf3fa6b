//go:build race

package publish

// raceEnabled: under the race detector, six times slower, disks are smaller and each kind is published once; without
// it, or with INGOT_FULL, all are.
const raceEnabled = true
