//! Typed offsets: the only references inside a memory.

use std::fmt;
use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The place of a `T`, in bytes from the start of the memory; zero is null. Base-relative, so that the
/// memory can be mapped anywhere, by several processes at once.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Off<T>(u64, PhantomData<fn() -> T>);

impl<T> Off<T> {
    pub const NULL: Off<T> = Off(0, PhantomData);

    pub const fn new(raw: u64) -> Self {
        Off(raw, PhantomData)
    }

    pub const fn raw(self) -> u64 {
        self.0
    }

    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The same place seen as another type.
    pub const fn cast<U>(self) -> Off<U> {
        Off(self.0, PhantomData)
    }

    /// The `n`th element of an array of `T` that begins here.
    pub const fn index(self, n: u64) -> Self {
        Off(self.0.wrapping_add(n.wrapping_mul(size_of::<T>() as u64)), PhantomData)
    }

    /// A field: `bytes` from here, as a `U`.
    pub const fn field<U>(self, bytes: usize) -> Off<U> {
        Off(self.0.wrapping_add(bytes as u64), PhantomData)
    }
}

impl<T> Clone for Off<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Off<T> {}
impl<T> PartialEq for Off<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Off<T> {}
impl<T> fmt::Debug for Off<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "@{:#x}", self.0)
    }
}
