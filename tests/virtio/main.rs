//! virtio-net: against DPDK's vhost backend on this host, and on the software device of this project.

mod dpdk;
mod simulated;
mod spread;
mod testpmd;
