package api

// ownRoutes are the routes of what Ironic has no word for, under /ingot/v1: quarantine, breaking a lock.
func (s *Server) ownRoutes() []route { return nil }
