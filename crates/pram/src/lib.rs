//! pram
