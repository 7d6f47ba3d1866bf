//! Placeholders until `xattr` and `acl` are in.
pub mod xattr {
    use crate::error::Result;
    use pram::{Region, Tag, Tx};
    use rustix::io::Errno;
    pub fn get(_: &Region, _: u64, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
    pub fn list(_: &Region, _: u64) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    pub fn set(_: &mut Tx, _: &mut u64, _: &[u8], _: &[u8], _: crate::node::SetXattr) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
    pub fn remove(_: &mut Tx, _: &mut u64, _: &[u8]) -> Result<()> {
        Err(Errno::NODATA.into())
    }
    pub fn free(_: &mut Tx, _: &mut u64) -> Result<()> {
        Ok(())
    }
    pub fn visit(_: &Region, _: u64, _: &mut dyn FnMut(u64, Tag)) -> Result<()> {
        Ok(())
    }
}
pub mod acl {
    use crate::attr::Caller;
    use crate::error::Result;
    pub const ACCESS: &[u8] = b"system.posix_acl_access";
    pub const DEFAULT: &[u8] = b"system.posix_acl_default";
    pub struct Inherited {
        pub mode: u32,
        pub access: Option<Vec<u8>>,
    }
    pub struct Folded {
        pub mode: u32,
        pub stored: bool,
    }
    pub fn inherit(_: &[u8], mode: u32) -> Result<Inherited> {
        Ok(Inherited { mode, access: None })
    }
    pub fn fold(_: &[u8], mode: u32) -> Result<Folded> {
        Ok(Folded { mode, stored: true })
    }
    pub fn chmod(acl: &[u8], _: u32) -> Result<Vec<u8>> {
        Ok(acl.to_vec())
    }
    pub fn validate(_: &[u8]) -> Result<()> {
        Ok(())
    }
    pub fn is_empty(acl: &[u8]) -> bool {
        acl.len() <= 4
    }
    pub fn permits(_: &[u8], _: &Caller, _: u32, _: u32, _: u32) -> bool {
        false
    }
}
