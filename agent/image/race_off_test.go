//go:build !race

package image

// raceEnabled is true with the race detector, which needs memory of its own.
const raceEnabled = false
