//! The documents and the code say the same.
//!
//! | module | what it checks |
//! | --- | --- |
//! | `tables` | reads the tables of a page |
//! | `format` | FORMAT.md: constants and structures, against the code |
//! | `reader` | FORMAT.md: a reader that knows nothing else |
//! | `memory` | that reader's findings in the memory and an image, against the API |
//! | `image` | the same reader in the checkpoint, against the program |
//! | `golden` | images of released versions |
//! | `content` | the content of these images |
//! | `names` | all pages: files and functions that they refer to exist |
//! | `language` | all pages: sentences name the one that acts, and the first pages for a newcomer are short |
//! | `links` | all pages: links lead to existing files and headings |
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
