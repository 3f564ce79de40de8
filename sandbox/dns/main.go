// Command dns is CoreDNS with the few plugins that the sandbox's Corefile
// names: a tenth of the packages of a full build.
//
// It is a module of its own. In the control plane's, CoreDNS would raise the
// versions of etcd and gRPC that Kubernetes pins.
package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	coremain.Run()
}
