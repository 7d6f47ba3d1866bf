//! What keeps the content of a memory elsewhere, as the session knows it that works with it.

use std::any::Any;

use super::Session;
use crate::error::Result;
use crate::memory::Memory;
use crate::runtime::Runtime;

/// What keeps the content of a memory elsewhere: on disk, the crate `backing`. All that it does but coming and going, programs ask it for
/// ([`Session::backing`]).
pub trait Backing: Any + Send + Sync {
    /// The first process comes to the memory with it.
    fn enter(&self, memory: &Memory, rt: &Runtime) -> Result<()>;

    /// The last process leaves: all that the memory holds goes there first.
    fn close(&self, session: &Session) -> Result<()>;

    /// For [`Session::backing`].
    fn as_any(&self) -> &dyn Any;
}
