//go:build !race

package publish

const raceOn = false
