//! The engine's answers and those of the kernel on a tmpfs, call by call.
//!
//! | module | what it shows |
//! | --- | --- |
//! | [`both`] | one call in the engine and in the kernel |
//! | [`world`] | equal trees for both |
//! | [`calls`] | calls one by one |
//! | [`paths`] | calls that take a path, on all kinds of paths |
//! | [`random`] | sequences of calls |
//! | [`users`] | calls of a user who may not do everything |

mod both;
mod calls;
mod paths;
mod random;
mod users;
mod world;
