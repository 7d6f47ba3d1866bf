//! Options for opening a file.

/// Options of [`View::open`](super::View::open), as `std::fs::OpenOptions`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
    pub(super) create: bool,
    pub(super) exclusive: bool,
    pub(super) truncate: bool,
    pub(super) no_follow: bool,
    pub(super) directory: bool,
    pub(super) mode: u32,
}

impl Open {
    /// For nothing yet. A new file has mode 0.
    pub const fn new() -> Open {
        Open {
            read: false,
            write: false,
            append: false,
            create: false,
            exclusive: false,
            truncate: false,
            no_follow: false,
            directory: false,
            mode: 0,
        }
    }

    pub const fn read(self, read: bool) -> Open {
        Open { read, ..self }
    }

    pub const fn write(self, write: bool) -> Open {
        Open { write, ..self }
    }

    /// Each write goes to the end.
    pub const fn append(self, append: bool) -> Open {
        Open { append, ..self }
    }

    /// Makes the file where it is not there.
    pub const fn create(self, create: bool) -> Open {
        Open { create, ..self }
    }

    /// Makes the file; an error (EEXIST) where it is there.
    pub const fn create_new(self, exclusive: bool) -> Open {
        Open { create: self.create || exclusive, exclusive, ..self }
    }

    /// Cuts the file to no length.
    pub const fn truncate(self, truncate: bool) -> Open {
        Open { truncate, ..self }
    }

    /// Fails (ELOOP) where the last name is a symbolic link's.
    pub const fn no_follow(self, no_follow: bool) -> Open {
        Open { no_follow, ..self }
    }

    /// Fails (ENOTDIR) where it is no directory.
    pub const fn directory(self, directory: bool) -> Open {
        Open { directory, ..self }
    }

    /// Permission bits of a new file.
    pub const fn mode(self, mode: u32) -> Open {
        Open { mode, ..self }
    }
}
