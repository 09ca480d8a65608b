// Command kube is the testbed's whole Kubernetes in one static binary: etcd, the control plane, the node agents and
// kubectl. One binary, because linking them together costs one build and one image layer instead of seven, and because
// no registry of images is needed: everything comes from Go modules.
//
// The component is the name the binary was called by (a symlink such as /usr/local/bin/kubelet) or else its first
// argument (kube kubelet --config=...).
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's request and queue metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components maps a name to what runs it; each reads os.Args[1:] and returns the exit code.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          command(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
	"kube-controller-manager": command(func() *cobra.Command { return controllermanager.NewControllerManagerCommand() }),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kube-proxy":              command(func() *cobra.Command { return proxy.NewProxyCommand() }),
	"kubectl":                 runKubectl,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, ok := components[name]
	if !ok && len(os.Args) > 1 {
		run, ok = components[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !ok {
		names := make([]string, 0, len(components))
		for n := range components {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: kube COMPONENT [FLAG...], where COMPONENT is one of %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(run())
}

func command(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints it and exits as kubectl does
	}
	return 0
}
