// Command fake-gpu-plugin serves nvidia.com/gpu to the kubelet of a node whose GPUs are fake.
package main

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"slurm-kube-bridge/testbed/kube/fakegpu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := fakegpu.Run(ctx, fakegpu.NodePaths()); err != nil {
		log.Fatal(err)
	}
}
