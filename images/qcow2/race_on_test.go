//go:build race

package qcow2

// raceEnabled tells that the race detector is on, with which the whole corpus takes many minutes.
const raceEnabled = true
