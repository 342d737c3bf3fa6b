//go:build race

package qcow2

// raceEnabled: with the race detector each kind of image is read in one cluster size; without it, or with INGOT_FULL,
// in all.
const raceEnabled = true
