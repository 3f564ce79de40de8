package main

import (
	"context"

	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// What a real node runs. Linux only: elsewhere neither does anything, and the
// control plane alone still builds there.
func init() {
	components["kubelet"] = func(args []string) int {
		return run(kubelet.NewKubeletCommand(context.Background()), args)
	}
	components["kube-proxy"] = func(args []string) int {
		return run(kubeproxy.NewProxyCommand(), args)
	}
}
