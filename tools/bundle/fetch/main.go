// Fetch makes sure that packages of npm are in the cache folder, and prints the folder that has them by their names.
package main

import (
	"fmt"
	"os"

	"github.com/ingot-metal/ingot/tools/bundle/npm"
)

func main() {
	dir, err := npm.Fetch(os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
