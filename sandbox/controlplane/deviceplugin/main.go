// Command deviceplugin advertises GPUs that are not there, through the
// kubelet's own device-plugin socket.
//
// To the kubelet, its device manager and the scheduler it is what NVIDIA's
// plugin is: it registers, lists devices with their health, and is asked at
// every container start which devices the container gets. Each container is
// told its devices as NVIDIA's plugin tells them under its strategy "index":
// NVIDIA_VISIBLE_DEVICES=0,3. What the devices are (product, memory, driver)
// comes with them as the environment given with -env, and -mount gives each
// container a folder, as the real plugin may give it the driver's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	endpoint        = "shardwright-gpu.sock"
	look            = 100 * time.Millisecond
	registerTimeout = 5 * time.Second
	visible         = "NVIDIA_VISIBLE_DEVICES"
)

// gpus is the state of the devices; its methods may be called at any time.
type gpus struct {
	ids    []string // by index
	env    map[string]string
	mounts []*pluginapi.Mount

	lock      sync.Mutex
	unhealthy []int
	changed   chan struct{} // closed at the next change of health
}

// list returns every device with its health, and what is closed when that changes.
func (g *gpus) list() ([]*pluginapi.Device, <-chan struct{}) {
	g.lock.Lock()
	defer g.lock.Unlock()
	devices := make([]*pluginapi.Device, len(g.ids))
	for index, id := range g.ids {
		health := pluginapi.Healthy
		if slices.Contains(g.unhealthy, index) {
			health = pluginapi.Unhealthy
		}
		devices[index] = &pluginapi.Device{ID: id, Health: health}
	}
	return devices, g.changed
}

func (g *gpus) setUnhealthy(indices []int) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.unhealthy = indices
	close(g.changed)
	g.changed = make(chan struct{})
}

// visibleDevices turns device ids into the sorted indices that a container is told.
func (g *gpus) visibleDevices(ids []string) (string, error) {
	indices := make([]int, len(ids))
	for position, id := range ids {
		if indices[position] = slices.Index(g.ids, id); indices[position] < 0 {
			return "", status.Errorf(codes.InvalidArgument, "no device %q here, there are %s", id, strings.Join(g.ids, ", "))
		}
	}
	slices.Sort(indices)
	words := make([]string, len(indices))
	for position, index := range indices {
		words[position] = strconv.Itoa(index)
	}
	return strings.Join(words, ","), nil
}

// server speaks the kubelet's protocol for one registration.
type server struct {
	pluginapi.UnimplementedDevicePluginServer
	gpus *gpus
}

func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		devices, changed := s.gpus.list()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *server) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		indices, err := s.gpus.visibleDevices(container.DevicesIds)
		if err != nil {
			return nil, err
		}
		env := maps.Clone(s.gpus.env)
		env[visible] = indices
		log.Printf("a container gets the GPUs %s", indices)
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:   env,
			Mounts: s.gpus.mounts,
		})
	}
	return response, nil
}

// serve listens, registers, and returns when the kubelet has swept the socket
// away, as it does whenever it starts.
func serve(g *gpus, folder, resource string, control *control) error {
	path := filepath.Join(folder, endpoint)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	grpcServer := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(grpcServer, &server{gpus: g})
	go func() {
		if err := grpcServer.Serve(listener); err != nil {
			log.Printf("the plugin's server ended: %v", err)
		}
	}()
	defer grpcServer.Stop()
	if err := register(filepath.Join(folder, filepath.Base(pluginapi.KubeletSocket)), resource); err != nil {
		return err
	}
	log.Printf("registered %d %s", len(g.ids), resource)
	for {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the kubelet has started anew: %w", err)
		}
		control.read(g)
		time.Sleep(look)
	}
}

func register(kubelet, resource string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     endpoint,
		ResourceName: resource,
	})
	return err
}

// control is the file that says which GPUs are unhealthy: a JSON list of
// indices. It is replaced by rename, so it is never seen half written.
type control struct {
	path string
	seen time.Time
}

func (c *control) read(g *gpus) {
	info, err := os.Stat(c.path)
	if err != nil || info.ModTime().Equal(c.seen) {
		return // without a file nobody has asked for anything
	}
	content, err := os.ReadFile(c.path)
	if err != nil {
		log.Printf("%s cannot be read: %v", c.path, err)
		return
	}
	c.seen = info.ModTime()
	var indices []int
	if err := json.Unmarshal(content, &indices); err != nil {
		log.Printf("%s is no JSON list of GPU indices, nothing changes: %v", c.path, err)
		return
	}
	log.Printf("unhealthy GPUs: %v", indices)
	g.setUnhealthy(indices)
}

// environment collects -env NAME=VALUE.
type environment map[string]string

func (e environment) String() string { return fmt.Sprint(map[string]string(e)) }

func (e environment) Set(text string) error {
	name, value, found := strings.Cut(text, "=")
	if !found || name == "" || name == visible {
		return fmt.Errorf("%q: give NAME=VALUE with a name other than %s", text, visible)
	}
	e[name] = value
	return nil
}

// mounts collects -mount FOLDER:PATH.
type mounts struct{ into *[]*pluginapi.Mount }

func (m mounts) String() string { return "" }

func (m mounts) Set(text string) error {
	host, inside, found := strings.Cut(text, ":")
	if !found || !filepath.IsAbs(host) || !filepath.IsAbs(inside) {
		return fmt.Errorf("%q: give FOLDER:PATH, both absolute", text)
	}
	*m.into = append(*m.into, &pluginapi.Mount{HostPath: host, ContainerPath: inside})
	return nil
}

func main() {
	g := &gpus{env: map[string]string{}, changed: make(chan struct{})}
	node := flag.String("node", "", "name of the node, part of the device ids")
	count := flag.Int("count", 8, "GPUs of the node")
	flag.Var(environment(g.env), "env", "NAME=VALUE for every container that gets a GPU (repeatable)")
	flag.Var(mounts{&g.mounts}, "mount", "FOLDER:PATH for every container that gets a GPU (repeatable)")
	folder := flag.String("folder", pluginapi.DevicePluginPath, "the kubelet's folder of plugin sockets")
	resource := flag.String("resource", "nvidia.com/gpu", "name of the resource")
	file := flag.String("control", "", "file with a JSON list of the indices of unhealthy GPUs")
	flag.Parse()
	if *node == "" || *count < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "deviceplugin: give -node NAME, -count 1 or more, and no other arguments")
		os.Exit(2)
	}
	for index := range *count {
		g.ids = append(g.ids, fmt.Sprintf("GPU-%s-%d", *node, index))
	}
	c := &control{path: *file}
	said := ""
	for {
		// what ends a registration is a kubelet that starts anew or is not there yet
		why := serve(g, *folder, *resource, c).Error()
		if why != said {
			log.Printf("registering again: %s", why)
			said = why
		}
		time.Sleep(look)
	}
}
