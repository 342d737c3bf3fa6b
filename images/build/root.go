package build

import (
	"context"
	"os"
	"strings"
)

// Root writes an archive of a root directory with Debian's essential packages and those given, from this machine's apt
// sources. Nothing in it is configured, and it has no kernel. It needs root.
func Root(ctx context.Context, archive string, packages ...string) error {
	if err := (needed{"mmdebstrap": "mmdebstrap"}).check(); err != nil {
		return err
	}
	files, err := hostSources()
	if err != nil {
		return err
	}
	sources, err := sourcesOf(files, debianSuite)
	if err != nil {
		return err
	}
	settings, err := aptSettings(ctx)
	if err != nil {
		return err
	}
	conf, err := os.CreateTemp("", "ingot-apt-*.conf")
	if err != nil {
		return err
	}
	defer os.Remove(conf.Name())
	_, err = conf.WriteString("APT::Install-Recommends \"false\";\n" + settings)
	if closed := conf.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	unfinished := archive + ".part"
	defer os.Remove(unfinished)
	if err := run(ctx, strings.NewReader(sources), "unshare", "--mount", "mmdebstrap", "--mode=root", "--format=tar",
		"--variant=essential", "--include="+strings.Join(packages, ","), "--aptopt="+conf.Name(), debianSuite,
		unfinished, "-"); err != nil {
		return err
	}
	return os.Rename(unfinished, archive)
}
