//! Registers as a table: name, offset, stride, access, meaning, section of the datasheet. A driver's accessors, the dump of a
//! sick device and the software device's access rules all come from one table, so a register is described once.

use super::Registers;

/// What reading and writing a register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read only; writes are ignored.
    ReadOnly,
    /// Write only; reads give zero.
    WriteOnly,
    /// A written one clears the bit.
    WriteOneClears,
    /// Reading clears it: a counter.
    ReadClears,
}

/// One register, or an array of `count` registers `stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// The datasheet's name.
    pub name: &'static str,
    /// Offset of the first, in bytes.
    pub offset: usize,
    /// How many.
    pub count: usize,
    /// Bytes from one to the next.
    pub stride: usize,
    /// What accesses do.
    pub access: Access,
    /// What it is, in words.
    pub meaning: &'static str,
    /// Where the datasheet describes it.
    pub section: &'static str,
}

impl Register {
    /// Offset of the register numbered `index`. Asserts that there is one.
    #[inline]
    pub const fn at(&self, index: usize) -> usize {
        assert!(index < self.count, "register index out of its array");
        self.offset + index * self.stride
    }
}

impl Registers {
    /// Reads a single register.
    #[inline]
    pub fn read(&self, register: Register) -> u32 {
        self.read32(register.at(0))
    }

    /// Writes a single register.
    #[inline]
    pub fn write(&self, register: Register, value: u32) {
        self.write32(register.at(0), value);
    }

    /// Reads the register numbered `index` of an array.
    #[inline]
    pub fn read_at(&self, register: Register, index: usize) -> u32 {
        self.read32(register.at(index))
    }

    /// Writes the register numbered `index` of an array.
    #[inline]
    pub fn write_at(&self, register: Register, index: usize, value: u32) {
        self.write32(register.at(index), value);
    }

    /// Reads a 64-bit counter that lies in two registers; the low half is read first, which latches the high one.
    pub fn read_pair(&self, low: Register, high: Register) -> u64 {
        let low = self.read(low);
        u64::from(low) | u64::from(self.read(high)) << 32
    }
}

/// Declares registers as constants of type [`Register`] and collects them in `REGISTERS`.
///
/// `NAME = offset, Access, "meaning", "section";` or `NAME = offset [count; stride], Access, "meaning", "section";`
#[macro_export]
macro_rules! register_table {
    ($($name:ident = $offset:literal $([$count:literal; $stride:literal])?, $access:ident, $meaning:literal, $section:literal;)*) => {
        $(
            #[doc = concat!($meaning, " (", $section, ")")]
            pub const $name: $crate::bus::Register = $crate::bus::Register {
                name: stringify!($name),
                offset: $offset,
                count: $crate::register_table!(@or 1 $(, $count)?),
                stride: $crate::register_table!(@or 4 $(, $stride)?),
                access: $crate::bus::Access::$access,
                meaning: $meaning,
                section: $section,
            };
        )*
        /// Every register of this table.
        pub const REGISTERS: &[$crate::bus::Register] = &[$($name),*];
    };
    (@or $default:literal) => { $default };
    (@or $default:literal, $given:literal) => { $given };
}
