//! QEMU's command line for a machine (the recipes are from measurements; see the comments).

use crate::{Cache, End, Kernel, Machine, Talk};
use std::path::Path;

/// What a machine's files are called, in its folder.
pub(crate) const STREAMS: [&str; 4] = ["stdin", "stdout", "stderr", "status"];

/// All arguments; `folder` is the machine's own.
pub(crate) fn of(machine: &Machine, cache: &Cache, folder: &Path) -> Vec<String> {
    let mut arguments = base(machine);
    arguments.extend(boot(machine, cache));
    arguments.extend(console(machine, folder));
    arguments.extend(shares(machine, cache, folder));
    arguments.extend(nics(machine, folder));
    arguments.extend(machine.qemu_arguments.iter().cloned());
    arguments
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Caching mode lets devices outside QEMU follow the IOMMU's table. The memory is a shared file for the same reason.
fn base(machine: &Machine) -> Vec<String> {
    words(&format!(
        "-nodefaults -M q35,kernel-irqchip=split,memory-backend=memory -accel tcg,thread=multi -cpu max -smp 2 \
         -m {0}M -object memory-backend-memfd,id=memory,size={0}M,share=on \
         -device intel-iommu,intremap=on,caching-mode=on -vga none -nic none -display none -no-reboot \
         -run-with exit-with-parent=on -name pollring,debug-threads=on",
        machine.memory_mib
    ))
}

fn boot(machine: &Machine, cache: &Cache) -> Vec<String> {
    let (image, initial) = cache.kernel(machine.kernel);
    let mut kernel = "console=ttyS0 quiet panic=-1 intel_iommu=on iommu=nopt no_timer_check nokaslr rootfstype=9p \
                      root=hostroot rootflags=trans=virtio,version=9p2000.L,msize=512000,cache=loose ro init=/init"
        .to_owned();
    if machine.kernel == Kernel::Debian {
        kernel.push_str(" boot=pollring");
    }
    for argument in &machine.kernel_arguments {
        kernel.push(' ');
        kernel.push_str(argument);
    }
    let mut arguments = vec!["-kernel".into(), image.display().to_string(), "-append".into(), kernel];
    if let Some(initial) = initial {
        arguments.extend(["-initrd".into(), initial.display().to_string()]);
    }
    arguments
}

fn console(machine: &Machine, folder: &Path) -> Vec<String> {
    let mut arguments = match machine.talk {
        Talk::Streams | Talk::Joined => words(&format!("-serial file:{}", folder.join("console").display())),
        Talk::Terminal => words("-chardev stdio,id=terminal,signal=off -serial chardev:terminal"),
    };
    arguments.extend(words("-device virtio-serial-pci,max_ports=8"));
    for (position, name) in STREAMS.iter().enumerate() {
        arguments.extend(words(&format!(
            "-chardev socket,id={name},path={} -device virtserialport,nr={},chardev={name},name={name}",
            folder.join(name).display(),
            position + 1
        )));
    }
    arguments
}

fn shares(machine: &Machine, cache: &Cache, folder: &Path) -> Vec<String> {
    let root = cache.root();
    let mut all = vec![("hostroot".to_owned(), root.as_path(), ",readonly=on")];
    let job = folder.join("job");
    all.push(("job".to_owned(), &job, ""));
    let named = machine.shares.iter().enumerate();
    all.extend(named.map(|(position, path)| (format!("share{position}"), path.as_path(), ",readonly=on")));
    all.iter()
        .flat_map(|(tag, path, rights)| {
            let path = path.display();
            words(&format!(
                "-virtfs local,path={path},security_model=none,mount_tag={tag},multidevs=remap{rights}"
            ))
        })
        .collect()
}

/// Each NIC has a root port: an IOMMU group of its own, and room for virtual functions.
fn nics(machine: &Machine, folder: &Path) -> Vec<String> {
    let mut arguments = Vec::new();
    for (position, nic) in machine.nics.iter().enumerate() {
        let backend = match nic.end {
            End::Host => format!(
                "-netdev dgram,id=n{position},local.type=unix,local.path={},remote.type=unix,remote.path={}",
                folder.join(format!("guest{position}")).display(),
                folder.join(format!("host{position}")).display()
            ),
            End::Hub(hub) => format!("-netdev hubport,id=n{position},hubid={hub}"),
        };
        arguments.extend(words(&format!(
            "{backend} -device pcie-root-port,id=rp{position},chassis={0},slot={0},bus=pcie.0,addr={1:#x} \
             -device {2},netdev=n{position},bus=rp{position},romfile=,mac=52:54:00:00:00:{0:02x}",
            position + 1,
            position + 0x10,
            nic.model
        )));
    }
    arguments
}
