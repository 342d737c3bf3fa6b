//go:build race

package app

// raceOn: with the race detector the crowd does less.
const raceOn = true
