# The testbed: a real Slurm and a real Kubernetes that share four nodes, in containers. Included by the Makefile.

.PHONY: testbed-up testbed-down testbed-status testbed-shell testbed-images testbed-check

testbed-up: ## Start Slurm, Kubernetes and the shared nodes (BRIDGE=1: and the bridge)
	testbed/bin/up $(if $(BRIDGE),bridge)

testbed-down: ## Remove the testbed with its volumes
	testbed/bin/down

testbed-status: ## What runs, and what both schedulers say
	testbed/bin/status

testbed-shell: ## A shell on a node (NODE=gpu-1)
	docker compose exec $(or $(NODE),gpu-1) bash

testbed-images: ## Build every image of the testbed and the bridge's own
	testbed/bin/base-image
	testbed/bin/compose-plugin
	testbed/bin/secrets
	testbed/bin/images testbed
	testbed/bin/images bridge

testbed-check: ## Tests of the testbed's own Go programs (seconds; Kubernetes itself is not compiled)
	cd testbed/kube && CGO_ENABLED=0 go vet ./fakegpu ./cmd/hold ./cmd/pause ./cmd/fake-gpu-plugin
	cd testbed/kube && CGO_ENABLED=0 go test ./fakegpu ./cmd/hold
