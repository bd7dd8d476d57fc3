use std::{io, os::fd::*, ptr::NonNull, sync::atomic::*};
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    Small4K,
    Huge2M,
    Huge1G,
}
impl PageSize {
    pub fn bytes(self) -> usize {
        match self {
            Self::Small4K => 4096,
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pages {
    Huge1G,
    Huge2M,
    Small4K { reason: String },
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode(pub u16);
#[derive(Clone, Debug)]
pub struct RegionConfig {
    pub name: String,
    pub bytes: usize,
    pub pages: Pages,
    pub node: Option<NumaNode>,
}
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error("{0}")]
    Io(io::Error),
}
pub struct Region {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    id: u64,
}
unsafe impl Send for Region {}
unsafe impl Sync for Region {}
static ID: AtomicU64 = AtomicU64::new(0);
impl Region {
    pub fn allocate(c: &RegionConfig) -> Result<Region, RegionError> {
        unsafe {
            let bytes = c.bytes.next_multiple_of(4096);
            let fd = libc::memfd_create(c"x".as_ptr(), libc::MFD_CLOEXEC);
            let fd = OwnedFd::from_raw_fd(fd);
            libc::ftruncate(fd.as_raw_fd(), bytes as i64);
            let p = libc::mmap(std::ptr::null_mut(), bytes, 3, libc::MAP_SHARED, fd.as_raw_fd(), 0);
            Ok(Region {
                fd,
                base: NonNull::new(p.cast()).unwrap(),
                bytes,
                id: ID.fetch_add(1, Ordering::Relaxed),
            })
        }
    }
    pub fn allocate_or_small(c: &RegionConfig) -> Result<Region, RegionError> {
        Self::allocate(c)
    }
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    pub fn page_size(&self) -> PageSize {
        PageSize::Small4K
    }
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    pub fn id(&self) -> u64 {
        self.id
    }
    pub fn small_reason(&self) -> Option<&str> {
        None
    }
    pub fn forbid_cpu(&self) -> io::Result<()> {
        unsafe { libc::mprotect(self.base.as_ptr().cast(), self.bytes, 0) };
        Ok(())
    }
    pub fn allow_cpu(&self) -> io::Result<()> {
        unsafe { libc::mprotect(self.base.as_ptr().cast(), self.bytes, 3) };
        Ok(())
    }
}
impl Drop for Region {
    fn drop(&mut self) {
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.bytes);
        }
    }
}
