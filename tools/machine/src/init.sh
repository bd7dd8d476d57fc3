#!/bin/bash
# The guest's first process: lays a writable layer over the shared root, mounts what the host shares, runs /run/job/command
# and tells its exit status. The host then ends the machine; when this script fails before that, the kernel panics and QEMU exits.
# Processes are slow here, so it starts few.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
if [ "$1" != again ]; then
  mount -t tmpfs layer /run
  mkdir -p /run/upper /run/work /run/root
  mount -t overlay overlay -o lowerdir=/,upperdir=/run/upper,workdir=/run/work /run/root
  exec chroot /run/root /bin/bash /init again
fi
mount -n -a -T /init.fstab
mount -n -a -T /run/job/fstab
# A kernel with modules gets those of its devices; the small one has them built in.
read -r release </proc/sys/kernel/osrelease
if [ -d "/lib/modules/$release" ]; then
  modprobe -qab $(cat /sys/bus/pci/devices/*/modalias /sys/bus/virtio/devices/*/modalias)
fi
ip link set lo up
echo guest >/proc/sys/kernel/hostname
read -r pages </run/job/hugepages
echo "$pages" >/proc/sys/vm/nr_hugepages
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
for stream in $out $err; do
  for _ in {1..100}; do
    kill -0 $stream 2>/dev/null || break
    sleep 0.02
  done
done
echo $status >/dev/vport0p4
sleep 600
