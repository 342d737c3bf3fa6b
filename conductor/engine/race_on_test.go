//go:build race

package engine

// raceOn: under the race detector, ten times slower, the exhaustive tests take some of the moments; without it, or with
// INGOT_FULL, all of them.
const raceOn = true
