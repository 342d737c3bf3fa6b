//go:build !race

package erase

// raceEnabled tells that the race detector, which makes everything several times slower, is on.
const raceEnabled = false
