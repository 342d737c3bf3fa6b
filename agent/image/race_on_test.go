//go:build race

package image

// raceEnabled is true with the race detector. It needs memory of its own, and makes data processing ten times slower:
// tests with many cases try each kind once with it, and all cases without it, or with INGOT_FULL.
const raceEnabled = true
