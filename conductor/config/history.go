package config

import "time"

// History bounds the stored past, in the nodes' histories and in the log of all nodes. Requests of users, and reports
// of machines and of the conductor itself, are counted apart: neither pushes out the other. ErasuresAge is for signed
// reports of erased disks.
type History struct {
	RequestsPerNode int           `yaml:"requests_per_node"`
	RequestsTotal   int           `yaml:"requests_total"`
	RequestsAge     time.Duration `yaml:"requests_age"`
	ReportsPerNode  int           `yaml:"reports_per_node"`
	ReportsTotal    int           `yaml:"reports_total"`
	ReportsAge      time.Duration `yaml:"reports_age"`
	ErasuresAge     time.Duration `yaml:"erasures_age"`
}
