package fakegpu

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const deadline = 10 * time.Second

// kubelet is the registration half of one, on a real socket.
type kubelet struct {
	plugin.UnimplementedRegistrationServer
	registered chan *plugin.RegisterRequest
}

func (k *kubelet) Register(_ context.Context, request *plugin.RegisterRequest) (*plugin.Empty, error) {
	k.registered <- request
	return &plugin.Empty{}, nil
}

// startKubelet does what a starting kubelet does: it clears the folder and makes its socket.
func startKubelet(t *testing.T, dir string) (registered <-chan *plugin.RegisterRequest, stop func()) {
	t.Helper()
	for _, name := range []string{"kubelet.sock", socketName} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{registered: make(chan *plugin.RegisterRequest, 8)}
	server := grpc.NewServer()
	plugin.RegisterRegistrationServer(server, k)
	go func() { _ = server.Serve(listener) }() // ends with server.Stop
	return k.registered, server.Stop
}

func await[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(deadline):
		t.Fatalf("%s: nothing within %s", what, deadline)
		panic("unreachable")
	}
}

func paths(t *testing.T) Paths {
	t.Helper()
	p := Paths{Devices: t.TempDir(), Sockets: t.TempDir()}
	for i := range GPUs {
		if err := os.WriteFile(filepath.Join(p.Devices, Prefix+strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func run(t *testing.T, p Paths) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, p) }()
	t.Cleanup(func() {
		cancel()
		if err := await(t, "end of Run", ended); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestRegistersAgainAfterKubeletRestart(t *testing.T) {
	p := paths(t)
	run(t, p) // before the kubelet, as after a reboot of the node

	registered, stop := startKubelet(t, p.Sockets)
	request := await(t, "first registration", registered)
	if request.ResourceName != Resource || request.Endpoint != socketName {
		t.Fatalf("registered as %v", request)
	}
	stop()

	registered, stop = startKubelet(t, p.Sockets)
	defer stop()
	await(t, "registration after the restart", registered)
}

func TestHealthFollowsTheFiles(t *testing.T) {
	p := paths(t)
	// The kubelet first: its socket seen to appear would be a reason to register again, which ends the stream.
	registered, stop := startKubelet(t, p.Sockets)
	defer stop()
	run(t, p)
	await(t, "registration", registered)

	conn, err := grpc.NewClient("unix://"+filepath.Join(p.Sockets, socketName),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	stream, err := plugin.NewDevicePluginClient(conn).ListAndWatch(ctx, &plugin.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	// One change of the folder may be told as several equal lists, so what counts is the list that is reached.
	becomes := func(what string, want []string) {
		t.Helper()
		var ids []string
		for first := true; first || !slices.Equal(ids, want); first = false {
			list, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v; unhealthy last: %v, want %v", what, err, ids, want)
			}
			if len(list.Devices) != GPUs {
				t.Fatalf("%d devices listed, want %d", len(list.Devices), GPUs)
			}
			ids = nil
			for _, device := range list.Devices {
				if device.Health != plugin.Healthy {
					ids = append(ids, device.ID)
				}
			}
		}
	}
	becomes("at start", nil)
	if err := os.Remove(filepath.Join(p.Devices, Prefix+"3")); err != nil {
		t.Fatal(err)
	}
	becomes("after fakegpu3 went", []string{"3"})
	if err := os.WriteFile(filepath.Join(p.Devices, Prefix+"3"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	becomes("after fakegpu3 came back", nil)
}

func TestAllocate(t *testing.T) {
	p := paths(t)
	s := &server{devicesDir: p.Devices}
	request := &plugin.AllocateRequest{ContainerRequests: []*plugin.ContainerAllocateRequest{{DevicesIds: []string{"5", "0"}}}}
	response, err := s.Allocate(context.Background(), request)
	if err != nil {
		t.Fatal(err)
	}
	got := response.ContainerResponses[0]
	if visible := got.Envs["NVIDIA_VISIBLE_DEVICES"]; visible != "0,5" {
		t.Errorf("NVIDIA_VISIBLE_DEVICES=%q", visible)
	}
	if len(got.Devices) != 0 {
		t.Errorf("device specs make new inodes: %v", got.Devices)
	}
	var mounted []string
	for _, mount := range got.Mounts {
		if mount.HostPath != mount.ContainerPath {
			t.Errorf("%s is mounted as %s", mount.HostPath, mount.ContainerPath)
		}
		mounted = append(mounted, mount.HostPath)
	}
	if want := []string{StateDir, "/dev/fakegpu0", "/dev/fakegpu5"}; !slices.Equal(mounted, want) {
		t.Errorf("mounts %v, want %v", mounted, want)
	}

	if err := os.Remove(filepath.Join(p.Devices, Prefix+"5")); err != nil {
		t.Fatal(err)
	}
	if response, err := s.Allocate(context.Background(), request); err == nil {
		t.Errorf("a GPU without a file is allocated: %v", response)
	}
}
