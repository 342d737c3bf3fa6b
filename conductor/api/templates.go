package api

// templateRoutes are the routes of deploy templates and runbooks.
func (s *Server) templateRoutes() []route { return nil }
