//go:build race

package images

// raceOn: under the race detector, ten times slower, each kind of packed file is read a few times; without it, or with
// INGOT_FULL, cut and damaged everywhere.
const raceOn = true
