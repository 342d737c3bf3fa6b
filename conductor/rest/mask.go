package rest

import "github.com/ingot-metal/ingot/conductor/redact"

// Masked is what answers show in place of a secret.
const Masked = redact.Stars
