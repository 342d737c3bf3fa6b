//go:build !race

package erase

// raceEnabled is true with the race detector, which makes everything several times slower.
const raceEnabled = false
