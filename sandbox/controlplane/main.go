// Command controlplane is etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler in one file, and on Linux kubelet and kube-proxy too.
//
// They share most of their code, so one link step gives one file of about
// 150 MB where separate ones would take 600 MB and six links. Which one runs
// is chosen by the name the file is started under (a symbolic link), or by the
// first argument when it is started under another name.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// components lists what this file can be. etcd is not a cobra command of the
// component-base kind, so each entry runs to its end and gives the exit code.
var components = map[string]func(args []string) int{
	"etcd": func(args []string) int {
		etcdmain.Main(args)
		return 0
	},
	"kube-apiserver": func(args []string) int {
		return run(apiserver.NewAPIServerCommand(), args)
	},
	"kube-controller-manager": func(args []string) int {
		return run(controllermanager.NewControllerManagerCommand(), args)
	},
	"kube-scheduler": func(args []string) int {
		return run(scheduler.NewSchedulerCommand(), args)
	},
}

func run(command *cobra.Command, args []string) int {
	// component-base reads os.Args through cobra; under the first-argument
	// form os.Args still holds the component's name, so pass them explicitly.
	command.SetArgs(args[1:])
	return cli.Run(command)
}

func main() {
	args := os.Args
	if _, known := components[filepath.Base(args[0])]; !known && len(args) > 1 {
		args = args[1:]
	}
	component, known := components[filepath.Base(args[0])]
	if !known {
		fmt.Fprintf(os.Stderr, "controlplane: %q is none of %s; start it under one of these names or give one as the "+
			"first argument\n", filepath.Base(args[0]), strings.Join(slices.Sorted(maps.Keys(components)), ", "))
		os.Exit(2)
	}
	os.Args = args
	os.Exit(component(args))
}
