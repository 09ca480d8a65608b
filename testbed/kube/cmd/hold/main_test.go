package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWanted(t *testing.T) {
	env := map[string]string{"SLURM_STEP_GPUS": "4,5", "SLURM_JOB_GPUS": "4,5,6,7"}
	for _, c := range []struct {
		name, list string
		env        map[string]string
		want       []int
	}{
		{"flag first", "0,7", env, []int{0, 7}},
		{"pod", "", map[string]string{"NVIDIA_VISIBLE_DEVICES": "3", "SLURM_JOB_GPUS": "1"}, []int{3}},
		{"step before job", "", env, []int{4, 5}},
		{"all", "", nil, []int{0, 1, 2, 3, 4, 5, 6, 7}},
	} {
		got, err := wanted(c.list, func(name string) string { return c.env[name] })
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
	for _, list := range []string{"8", "-1", "0-3", "0,,1", "all"} {
		if got, err := wanted(list, os.Getenv); err == nil {
			t.Errorf("list %q is accepted as %v", list, got)
		}
	}
}

func TestLockIsOneAtATime(t *testing.T) {
	device := filepath.Join(t.TempDir(), "fakegpu0")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := lock(device); err != nil {
		t.Fatalf("first lock: %v", err)
	}
	if err := lock(device); !errors.Is(err, errTaken) {
		t.Fatalf("second lock: got %v, want errTaken", err)
	}
	if err := lock(device + "missing"); err == nil || errors.Is(err, errTaken) {
		t.Fatalf("lock of a missing device: got %v, want an error that is no evidence", err)
	}
}

// The lock must pass through exec into the command: a child of sh sees it taken after the locking process is gone.
func TestHoldPassesTheLockOn(t *testing.T) {
	device := filepath.Join(t.TempDir(), "fakegpu0")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if path := os.Getenv("HOLD_TEST_DEVICE"); path != "" { // the process that locks and becomes cat
		if err := lock(path); err != nil {
			t.Fatal(err)
		}
		t.Fatal(syscall.Exec("/bin/cat", []string{"cat"}, nil))
	}
	holder := exec.Command(os.Args[0], "-test.run=^TestHoldPassesTheLockOn$")
	holder.Env = append(os.Environ(), "HOLD_TEST_DEVICE="+device)
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	// cat echoes only after the exec, so the line is the proof that the locking program is gone.
	if _, err := stdin.Write([]byte("there\n")); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "there\n" {
		t.Fatalf("the command is not running: %q, %v", line, err)
	}
	if err := lock(device); !errors.Is(err, errTaken) {
		t.Errorf("the command does not hold the lock: %v", err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := holder.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := lock(device); err != nil {
		t.Errorf("the lock outlives the command: %v", err)
	}
}

func TestAccuse(t *testing.T) {
	dir := t.TempDir()
	if err := accuse(dir, "/dev/fakegpu3", time.Now()); err == nil {
		t.Fatal("evidence without the node's name is accepted")
	}
	if err := os.WriteFile(filepath.Join(dir, "node"), []byte("gpu-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_JOB_ID", "17")
	for range 2 {
		if err := accuse(dir, "/dev/fakegpu3", time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "double-booked"))
	want := strings.Repeat("1970-01-01T00:00:00Z gpu-1 job/17 /dev/fakegpu3\n", 2)
	if err != nil || string(got) != want {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
}
