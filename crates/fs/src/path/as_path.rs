//! Types that name a file.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path: as `std` has them, or the bytes that Unix knows.
pub trait AsPath {
    fn bytes(&self) -> &[u8];
}

impl<T: AsPath + ?Sized> AsPath for &T {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }
}

macro_rules! as_path {
    ($($kind:ty: $bytes:ident),*) => {$(
        impl AsPath for $kind {
            #[inline(always)]
            fn bytes(&self) -> &[u8] {
                self.$bytes().as_ref()
            }
        }
    )*};
}

as_path!(str: as_bytes, String: as_bytes, OsStr: as_bytes, OsString: as_bytes, [u8]: as_ref, Vec<u8>: as_slice);

impl AsPath for Path {
    fn bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl AsPath for PathBuf {
    fn bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl<const N: usize> AsPath for [u8; N] {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self
    }
}
