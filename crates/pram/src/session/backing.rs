//! What keeps the content of a region elsewhere, as the session knows it that works with it.

use std::any::Any;

use super::Session;
use crate::error::Result;
use crate::region::Region;
use crate::runtime::Runtime;

/// What keeps the content of a region elsewhere: on disk, the crate `backing`. All that it does but coming and going, programs ask it for
/// ([`Session::backing`]).
pub trait Backing: Any + Send + Sync {
    /// The first process comes to the region with it.
    fn enter(&self, region: &Region, rt: &Runtime) -> Result<()>;

    /// The last process leaves: all that the region holds goes there first.
    fn close(&self, session: &Session) -> Result<()>;

    /// For [`Session::backing`].
    fn as_any(&self) -> &dyn Any;
}
