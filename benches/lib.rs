//! What the benches share: the cycle counter and medians.
//!
//! Times are printed and never asserted: the machines are shared. Compare within one run, by medians.

/// The time-stamp counter; nanoseconds where there is none. Its unit is the same for everything measured in one run.
#[inline]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads a counter and touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
    }
}

/// The middle one of some figures; 0 of none.
pub fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}
