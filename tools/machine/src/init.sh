#!/bin/bash
# The guest's first process: lays a writable layer over the shared root, mounts what the host shares, runs /run/job/command
# and tells its exit status. The host then ends the machine; when this script fails before that, the kernel panics and QEMU exits.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
if [ "$1" != again ]; then
  mount -t tmpfs layer /run
  mkdir -p /run/upper /run/work /run/root
  mount -t overlay overlay -o lowerdir=/,upperdir=/run/upper,workdir=/run/work /run/root
  mkdir -p /run/root/run/job
  exec chroot /run/root /bin/bash /init again
fi
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/hugepages
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /run/job /run/lock
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $options job /run/job
while read -r tag path; do
  mkdir -p "$path"
  mount -t 9p -o "$options,cache=loose,ro" "$tag" "$path"
done </run/job/shares
ip link set lo up
hostname guest 2>/dev/null || echo guest >/proc/sys/kernel/hostname
cat /run/job/hugepages >/proc/sys/vm/nr_hugepages
mount -t hugetlbfs huge /dev/hugepages
ulimit -l unlimited

if [ -e /run/job/interactive ]; then
  setsid -c bash /run/job/command </dev/ttyS0 >/dev/ttyS0 2>&1
  echo $? >/dev/vport0p4
  sleep 600
fi
mkfifo /run/out /run/err
cat /run/out >/dev/vport0p2 &
out=$!
cat /run/err >/dev/vport0p3 &
err=$!
bash /run/job/command </dev/vport0p1 >/run/out 2>/run/err
status=$?
# What the command left running may hold its output open; what it wrote itself is through by then.
timeout 2 tail --pid=$out -f /dev/null
timeout 2 tail --pid=$err -f /dev/null
echo $status >/dev/vport0p4
sleep 600
