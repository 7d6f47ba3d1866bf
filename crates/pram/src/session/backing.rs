//! The backing of a memory, as the session that works with it knows it.

use std::any::Any;

use super::Session;
use crate::error::Result;
use crate::memory::Memory;
use crate::runtime::Runtime;

/// The backing of a memory: the crate `backing` keeps its content on disk. A session only opens and closes it; programs
/// ask for everything else through [`Session::backing`].
pub trait Backing: Any + Send + Sync {
    /// Called when the first process attaches to the memory.
    fn enter(&self, memory: &Memory, rt: &Runtime) -> Result<()>;

    /// Called when the last process leaves: first writes the whole content of the memory to the backing.
    fn close(&self, session: &Session) -> Result<()>;

    /// For [`Session::backing`].
    fn as_any(&self) -> &dyn Any;
}
