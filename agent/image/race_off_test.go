//go:build !race

package image

// raceEnabled tells that the race detector, which takes memory of its own, is on.
const raceEnabled = false
