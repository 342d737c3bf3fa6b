//go:build !race

package disk

// raceEnabled tells that the race detector, which makes everything several times slower, is on.
const raceEnabled = false
