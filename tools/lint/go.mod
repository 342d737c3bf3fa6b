module github.com/ingot-metal/ingot/tools/lint

go 1.26.0

require (
	github.com/golangci/dupl v0.0.0-20250308024227-f665c8d69b32
	github.com/golangci/misspell v0.7.0
	github.com/kisielk/errcheck v1.9.0
	github.com/kkHAIKE/contextcheck v1.1.6
	github.com/mgechev/revive v1.12.0
	github.com/polyfloyd/go-errorlint v1.8.0
	github.com/timakin/bodyclose v0.0.0-20241222091800-1db5c5ca4d67
	golang.org/x/tools v0.51.0
	mvdan.cc/unparam v0.0.0-20251027182757-5beb8c8f8f15
)

require (
	github.com/fatih/structtag v1.2.0 // indirect
	github.com/gostaticanalysis/analysisutil v0.7.1 // indirect
	github.com/gostaticanalysis/comment v1.5.0 // indirect
	github.com/hashicorp/go-version v1.7.0 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/tools/go/packages/packagestest v0.1.1-deprecated // indirect
)
