//! The documents and the code say the same.
//!
//! | module | what it holds together |
//! | --- | --- |
//! | `tables` | reads the tables of a page |
//! | `format` | FORMAT.md: constants and structures, against the code |
//! | `reader` | FORMAT.md: a reader that knows nothing else |
//! | `memory` | what that reader finds in the memory and an image, against the API |
//! | `image` | the same reader in the checkpoint, against the program |
//! | `golden` | images of released versions |
//! | `content` | what these hold |
//! | `names` | all pages: files and functions that they refer to exist |
//! | `language` | all pages: sentences name what acts, and what a newcomer reads is short |
//! | `links` | all pages: links lead to files and headings that are there |
//! | `messages` | GUIDE.md: messages, against what programs say |
//! | `costs` | SEMANTICS.md: flushes and fences of operations on `dax` |
//! | `semantics` | SEMANTICS.md: limits (its examples are doc tests) |

mod content;
mod costs;
mod format;
mod golden;
mod image;
mod language;
mod links;
mod memory;
mod messages;
mod names;
mod reader;
mod semantics;
mod tables;
