package rest

import "github.com/ingot-metal/ingot/conductor/guard/redact"

// Masked stands in answers in place of a secret.
const Masked = redact.Stars
