#!/bin/busybox sh
# The guest's first program: puts a writable layer over the host's root, mounts what a node has,
# and goes there. The kernel hands on those of its parameters that it does not know: VM_CGROUP (v1
# or v2), VM_SHARE (the folder shared with the host, at its path there), VM_INIT (what to become).
set -e
/bin/busybox mkdir -p /bin /proc /sys /dev /host /layer /root
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in /modules/*; do insmod "$module"; done

mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=512000,ro host /host
mount -t tmpfs none /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work none /root
for made in dev proc sys run tmp var/lib/containerd "$VM_SHARE"; do mkdir -p "/root/$made"; done
for place in run var/lib/containerd; do mount -t tmpfs none "/root/$place"; done
# Not cached: each side sees at once what the other writes.
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 share "/root/$VM_SHARE"
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
ln -sf /proc/self/fd /dev/fd

groups=/sys/fs/cgroup
if [ "$VM_CGROUP" = v1 ]; then
    mount -t tmpfs none $groups
    for controller in cpuset cpu,cpuacct memory pids devices freezer blkio; do
        mkdir $groups/$controller
        mount -t cgroup -o $controller none $groups/$controller
    done
else
    mount -t cgroup2 -o nsdelegate none $groups
    echo "+cpuset +cpu +memory +pids +io" > $groups/cgroup.subtree_control
fi
ifconfig lo 127.0.0.1 up
hostname guest
for place in dev proc sys; do mount --move /$place /root/$place; done
cp -r "/root/$VM_SHARE/run" /root
rm -f /root/.dockerenv # the host may be a container; this machine is none
case $VM_INIT in
    systemd) exec switch_root /root /lib/systemd/systemd ;;
    *) exec switch_root /root /bin/sh "$VM_SHARE/obey.sh" ;;
esac
