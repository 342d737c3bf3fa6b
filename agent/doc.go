// Package agent is the agent proper: it enrols with the conductor, keeps the session, and carries out plans of steps.
//
// The conductor may go away at any time. A plan goes on without it; what happened meanwhile is kept in a queue (results
// until they are acknowledged, the newest progress of the running step, a ring of log lines) and sent when it is back.
// Plans are fenced: one id once per boot, never a lower generation. What a worker must hand to its successor when it
// dies lies in StateFile. Sizes are bytes, rates bytes per second.
package agent
