//go:build race

package store

// raceOn: with the race detector, which takes ten times as long, less is aged.
const raceOn = true
