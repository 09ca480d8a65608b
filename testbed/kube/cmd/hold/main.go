// Command hold runs a command while holding fake GPUs, and leaves evidence when somebody else holds one.
//
//	hold [-g 0,1,...] COMMAND [ARG...]
//
// The GPUs are those of -g, else of NVIDIA_VISIBLE_DEVICES (pods), SLURM_STEP_GPUS or SLURM_JOB_GPUS (Slurm jobs), else
// all of them. Each device file is locked exclusively without waiting; the locks live in the command, which replaces
// this process, and in all its children until the last of them closes the file. A GPU that is already locked is double
// booked: a line goes to /var/lib/fakegpu/double-booked and the exit code is 99.
//
// It is a static program rather than a script so that it runs in any image, and because no POSIX shell need support the
// ten file descriptors this takes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	exitDoubleBooked = 99
	exitBroken       = 98 // anything that is not evidence, so that no test takes a typo for a double booking

	gpus     = 8
	stateDir = "/var/lib/fakegpu"
)

var errTaken = errors.New("somebody else holds it")

func main() {
	list := flag.String("g", "", "comma separated indices of the GPUs to hold")
	flag.Parse()
	if flag.NArg() == 0 {
		fail("usage: hold [-g 0,1,...] COMMAND [ARG...]")
	}
	indices, err := wanted(*list, os.Getenv)
	if err != nil {
		fail(err.Error())
	}
	program, err := exec.LookPath(flag.Arg(0))
	if err != nil {
		fail(err.Error())
	}
	for _, index := range indices {
		device := fmt.Sprintf("/dev/fakegpu%d", index)
		switch err := lock(device); {
		case errors.Is(err, errTaken):
			if err := accuse(stateDir, device, time.Now()); err != nil {
				fail(err.Error())
			}
			fmt.Fprintf(os.Stderr, "hold: %s is double booked\n", device)
			os.Exit(exitDoubleBooked)
		case err != nil:
			fail(err.Error())
		}
	}
	fail(syscall.Exec(program, flag.Args(), os.Environ()).Error())
}

func fail(why string) {
	fmt.Fprintf(os.Stderr, "hold: %s\n", why)
	os.Exit(exitBroken)
}

// wanted returns the GPU indices to lock; a list that is not of indices below gpus is an error.
func wanted(list string, getenv func(string) string) ([]int, error) {
	for _, variable := range []string{"NVIDIA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"} {
		if list == "" {
			list = getenv(variable)
		}
	}
	var indices []int
	if list == "" {
		for i := range gpus {
			indices = append(indices, i)
		}
		return indices, nil
	}
	for _, word := range strings.Split(list, ",") {
		index, err := strconv.Atoi(word)
		if err != nil || index < 0 || index >= gpus {
			return nil, fmt.Errorf("%q in GPU list %q is no index from 0 to %d", word, list, gpus-1)
		}
		indices = append(indices, index)
	}
	return indices, nil
}

// lock takes the device for this process and whatever it becomes: opened without O_CLOEXEC on purpose.
func lock(device string) error {
	fd, err := syscall.Open(device, syscall.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	err = syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", device, err)
	}
	return nil
}

// accuse appends who met a taken lock where; one short O_APPEND write, so lines of two accusers do not mix.
func accuse(dir, device string, now time.Time) error {
	node, err := os.ReadFile(filepath.Join(dir, "node"))
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, "double-booked"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	name := strings.TrimSpace(string(node))
	line := fmt.Sprintf("%s %s %s %s\n", now.UTC().Format(time.RFC3339Nano), name, who(name), device)
	if _, err := file.WriteString(line); err != nil {
		return errors.Join(err, file.Close())
	}
	return file.Close()
}

// who names the Slurm job, or else the pod, whose name is the host name, or else the user on the node itself.
func who(node string) string {
	if job := os.Getenv("SLURM_JOB_ID"); job != "" {
		return "job/" + job
	}
	if host, err := os.Hostname(); err == nil && host != node {
		return "pod/" + host
	}
	return fmt.Sprintf("uid/%d", os.Getuid())
}
