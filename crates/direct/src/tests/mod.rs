//! The engine's answers and those of the kernel on a tmpfs, call by call.
//!
//! | module | what it shows |
//! | --- | --- |
//! | [`both`] | one call in the engine and in the kernel |
//! | [`calls`] | calls one by one |

mod both;
mod calls;
