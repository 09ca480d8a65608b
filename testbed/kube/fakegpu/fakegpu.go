// Package fakegpu stands in for NVIDIA's device plugin on nodes without GPUs.
//
// A fake GPU is a device file that Slurm's gres.conf names too. Tests prove the absence of double booking with flock(2)
// on that file, and flock belongs to the inode: pods therefore get a bind mount of the node's file. A DeviceSpec would
// have runc make a second inode with the same number, and both worlds would hold "the" lock at once.
package fakegpu

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// GPUs is how many fake GPUs a node has, whether or not their files exist at the moment.
	GPUs = 8
	// Resource is the extended resource the bridge counts, as on nodes with real GPUs.
	Resource = "nvidia.com/gpu"
	// Prefix is the device file's name before its index.
	Prefix = "fakegpu"
	// StateDir holds the hold command and its evidence, on the node and in every pod that has a GPU.
	StateDir = "/var/lib/fakegpu"

	socketName       = "fakegpu.sock"
	registerTimeoutS = 5
	retryS           = 1
)

// Paths are the folders the plugin works in.
type Paths struct {
	// Devices is where the plugin sees the node's /dev, to tell health by the files' existence.
	Devices string
	// Sockets is the kubelet's device plugin folder: its kubelet.sock, and ours beside it.
	Sockets string
}

// NodePaths returns the folders as the DaemonSet mounts them.
func NodePaths() Paths {
	return Paths{Devices: "/host/dev", Sockets: plugin.DevicePluginPath}
}

// Run serves the devices until ctx ends. It registers again whenever the kubelet makes its socket anew, because a
// starting kubelet deletes every plugin's socket and forgets the plugin.
func Run(ctx context.Context, paths Paths) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	defer watcher.Close()
	for _, dir := range []string{paths.Devices, paths.Sockets} {
		if err := watcher.Add(dir); err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
	}

	kubeletSocket := filepath.Join(paths.Sockets, "kubelet.sock")
	for {
		server, err := start(paths)
		if err != nil {
			return err
		}
		var retry <-chan time.Time // never, once registered
		if err := register(ctx, kubeletSocket); err != nil {
			log.Printf("not registered: %v", err)
			retry = time.After(retryS * time.Second)
		}
		again, err := follow(ctx, watcher, server, kubeletSocket, retry)
		server.stop()
		if !again {
			return err
		}
	}
}

// follow passes device changes on to the kubelet; it reports true when the plugin must register (again).
func follow(
	ctx context.Context, watcher *fsnotify.Watcher, server *server, kubeletSocket string, retry <-chan time.Time,
) (bool, error) {
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-retry:
			return true, nil
		case err := <-watcher.Errors:
			return false, fmt.Errorf("watch files: %w", err)
		case event := <-watcher.Events:
			switch {
			case event.Name == kubeletSocket && event.Has(fsnotify.Create):
				log.Print("the kubelet made its socket anew: registering again")
				return true, nil
			case strings.HasPrefix(filepath.Base(event.Name), Prefix):
				server.refresh()
			}
		}
	}
}

type server struct {
	plugin.UnimplementedDevicePluginServer
	devicesDir string
	grpc       *grpc.Server

	mu      sync.Mutex
	changed chan struct{} // closed and replaced on every change of the device files
}

// start serves on the plugin's socket, which must answer before the kubelet is told of it.
func start(paths Paths) (*server, error) {
	socket := filepath.Join(paths.Sockets, socketName)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the former socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	s := &server{devicesDir: paths.Devices, grpc: grpc.NewServer(), changed: make(chan struct{})}
	plugin.RegisterDevicePluginServer(s.grpc, s)
	go func() {
		if err := s.grpc.Serve(listener); err != nil {
			log.Printf("serve: %v", err)
		}
	}()
	return s, nil
}

func register(ctx context.Context, kubeletSocket string) error {
	conn, err := grpc.NewClient("unix://"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, registerTimeoutS*time.Second)
	defer cancel()
	_, err = plugin.NewRegistrationClient(conn).Register(ctx, &plugin.RegisterRequest{
		Version:      plugin.Version,
		Endpoint:     socketName,
		ResourceName: Resource,
	})
	return err
}

func (s *server) stop() { s.grpc.Stop() }

// refresh wakes every ListAndWatch stream.
func (s *server) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) nextChange() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// devices lists all fake GPUs by index, unhealthy where the file is missing.
func (s *server) devices() []*plugin.Device {
	devices := make([]*plugin.Device, GPUs)
	for i := range devices {
		id := strconv.Itoa(i)
		devices[i] = &plugin.Device{ID: id, Health: plugin.Healthy}
		if !s.exists(id) {
			devices[i].Health = plugin.Unhealthy
		}
	}
	return devices
}

func (s *server) exists(id string) bool {
	_, err := os.Stat(filepath.Join(s.devicesDir, Prefix+id))
	return err == nil
}

// GetDevicePluginOptions says that the kubelet need not ask before a container starts.
func (s *server) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

// ListAndWatch streams the device list, now and after every change of the files.
func (s *server) ListAndWatch(_ *plugin.Empty, stream grpc.ServerStreamingServer[plugin.ListAndWatchResponse]) error {
	for {
		changed := s.nextChange() // taken before the files are read, so that no change falls between
		if err := stream.Send(&plugin.ListAndWatchResponse{Devices: s.devices()}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// Allocate gives each container its device files, the hold command, and the variable by which it finds its GPUs.
func (s *server) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := slices.Clone(container.DevicesIds)
		slices.Sort(ids)
		mounts := []*plugin.Mount{{HostPath: StateDir, ContainerPath: StateDir}}
		for _, id := range ids {
			if !s.exists(id) {
				return nil, fmt.Errorf("fake GPU %s has no device file", id)
			}
			device := "/dev/" + Prefix + id
			mounts = append(mounts, &plugin.Mount{HostPath: device, ContainerPath: device})
		}
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs:   map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(ids, ",")},
			Mounts: mounts,
		})
	}
	return response, nil
}
