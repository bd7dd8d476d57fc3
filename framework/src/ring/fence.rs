//! Ordering between this CPU and a device that reads and writes coherent memory.
//!
//! Rust's fences order CPUs among each other. A device is a further observer: on x86 stores reach it in program order, so
//! only the compiler must be held back; on aarch64 it is outside the inner-shareable domain that `Ordering` speaks of, so
//! the barriers are the outer-shareable ones, in assembly (Arm ARM B2.3.12, DMB options). Volatile MMIO does not order plain
//! stores by itself, so a doorbell always goes through [`before_doorbell`].

/// Every load of a descriptor before this is ordered before every later load and store: after a done bit was seen, the
/// bytes that the device wrote before it are visible, and the buffer may be reused.
#[inline]
pub fn after_done_bit() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction; it touches no memory and no register.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
}

/// Every store to descriptors and buffers before this is visible to the device before the doorbell that follows.
#[inline]
pub fn before_doorbell() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction; it touches no memory and no register.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
}

/// Every store before this is visible before every later load, for protocols where each side writes its own word and then
/// reads the other's (event indexes, arming an interrupt).
#[inline]
pub fn store_then_load() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction; it touches no memory and no register.
    unsafe {
        core::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}
