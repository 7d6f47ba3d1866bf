//! The figures of the paper on Conquest.

use super::{Claim, Figure, Paper};

const RAM: &[&str] = &["tmpfs"];
const EXT: &[&str] = &["ext2", "ext4"];
const EXT_DISK: &[&str] = &["ext2", "ext4 data=ordered"];

const SMALL: &str = "smallfile";
const IN_CORE: &str = "largefile-5.2a";
const ABOVE: &str = "largefile-5.2b";
const ON_DISK: &str = "largefile-5.2c";
const MOST: &str = "30000";

pub const PAPER: Paper = Paper {
    name: "Conquest",
    title: "Conquest: Better Performance Through a Disk/Persistent-RAM Hybrid File System (2002)",
    machine: "a 1 GHz Pentium III Xeon with 2 GB of RAM and a disk of 10,000 RPM, Linux 2.4.2 (Tables 5.1 and 5.2)",
    figures: &[SMALL_FILES, UNMODIFIED, LARGE_FILES, TRANSACTIONS, CREATION, MIXED],
};

const SMALL_FILES: Figure = Figure {
    name: "Figure 5.1: Sprite LFS small files",
    question: "How fast are 10,000 files of 1 KB created, read and removed?",
    workload: "smallfile",
    sections: &[SMALL],
    claims: &[
        Claim::factor("create, against ramfs", "0.95 x", "5.1.1", (SMALL, "create+write", RAM)),
        Claim::factor("read, against ramfs", "1.15 x", "5.1.1", (SMALL, "open+read", RAM)),
        Claim::factor("unlink, against ramfs", "0.88 x", "5.1.1", (SMALL, "unlink", RAM)),
        Claim::factor("create, against ext2", "1.50 x", "5.1.1", (SMALL, "create+write", EXT)),
        Claim::factor("read, against cached ext2", "1.19 x", "5.1.1", (SMALL, "open+read", EXT)),
        Claim::factor("unlink, against ext2", "1.50 x", "5.1.1", (SMALL, "unlink", EXT)),
    ],
    alike: "the files, their number and the phases; all file systems keep them in RAM.",
    differs: "tmpfs stands for ramfs, ext4 for ext2 where ext2 was not measured; stat, fsync and a second read are added. \
              Through the mount each open, write, close and unlink is a message to a server and back, where the paper's \
              file system was a call in the kernel; in process there is no system call at all.",
};

const WALL: &str = "direct-files-wall";

const UNMODIFIED: Figure = Figure {
    name: "Figure 5.1, by unmodified programs",
    question: "How fast does a program that `conquest run` started create, read and remove files?",
    workload: "direct",
    sections: &[WALL],
    claims: &[
        Claim::factor("create, against ramfs", "0.95 x", "5.1.1", (WALL, "create + write + close", RAM)),
        Claim::factor("read, against ramfs", "1.15 x", "5.1.1", (WALL, "open + read + close", RAM)),
        Claim::factor("unlink, against ramfs", "0.88 x", "5.1.1", (WALL, "unlink", RAM)),
    ],
    alike: "files of 1 KB, in separate phases.",
    differs: "calls are served in the program's own process, beside the mount. *Known* is a directory that the mount's kernel has \
              looked at, which has to be notified. All files are in one directory.",
};

const LARGE_FILES: Figure = Figure {
    name: "Figure 5.2: Sprite LFS large files",
    question: "How fast are files written and read, in order and at random, that lie in RAM, just above the threshold, and far above it?",
    workload: "largefile",
    sections: &[IN_CORE, ABOVE, ON_DISK],
    claims: &[
        Claim::factor("1 MB, write, against ramfs", "1.08 x", "5.1.2", (IN_CORE, "write", RAM)),
        Claim::factor("1 MB, read, against ramfs", "1.15 x", "5.1.2", (IN_CORE, "read", RAM)),
        Claim::factor("1 MB, random write, against ramfs", "1.08 x", "5.1.2", (IN_CORE, "random write", RAM)),
        Claim::factor("1 MB, random read, against ramfs", "1.17 x", "5.1.2", (IN_CORE, "random read", RAM)),
        Claim::factor("1 MB, write, against ext2", "20 x", "5.1.2", (IN_CORE, "write", EXT_DISK)),
        Claim::factor("1 MB, read, against ext2", "1.15 x", "5.1.2", (IN_CORE, "read", EXT_DISK)),
        Claim::factor("1 MB, random write, against ext2", "68 x", "5.1.2", (IN_CORE, "random write", EXT_DISK)),
        Claim::factor("1 MB, random read, against ext2", "1.18 x", "5.1.2", (IN_CORE, "random read", EXT_DISK)),
        Claim::quoted("1.01 MB, against cached ext2", "alike", "5.1.2"),
        Claim::factor("100 MB, write, against ext2", "1.08 x", "5.1.2", (ON_DISK, "write", EXT_DISK)),
        Claim::factor("100 MB, random write, against ext2", "1.04 x", "5.1.2", (ON_DISK, "random write", EXT_DISK)),
    ],
    alike: "the sizes, the phases and their order, and a flush at the end of each phase that writes.",
    differs: "fewer files of 100 MB. The disk is the machine's own, under files of a host's file system: it is much faster \
              than a disk of 10,000 RPM against the processor, so the factors of writing to RAM are smaller.",
};

const TRANSACTIONS: Figure = Figure {
    name: "Figure 5.3: PostMark",
    question: "How many transactions are done in a second, by the number of files?",
    workload: "postmark",
    sections: &["postmark-5.3"],
    claims: &[
        Claim::quoted("against ramfs", "little difference", "5.2"),
        Claim::factor("fewest files, against ext2", "1.24 x", "5.2", ("postmark-5.3", "5000", EXT)),
        Claim::factor("most files, against ext2", "4.50 x", "5.2", ("postmark-5.3", MOST, EXT)),
    ],
    alike: "sizes of files, directories, mix of transactions, calls of 512 bytes.",
    differs: "a twentieth of the transactions, as rates are shown. ext4 keeps all files in its page cache and finds names by \
              hashes, where ext2 searched directories, so it does not fall behind as files become many. Through the mount \
              each call of 512 bytes that writes is a message.",
};

const CREATION: Figure = Figure {
    name: "Figure 5.4: PostMark's creation of files",
    question: "How fast are files created, alone and among other transactions?",
    workload: "postmark",
    sections: &["postmark-5.4a", "postmark-5.4b"],
    claims: &[
        Claim::factor("alone, against ramfs", "0.91 x", "5.2", ("postmark-5.4a", MOST, RAM)),
        Claim::factor("alone, against ext2", "1.26 x", "5.2", ("postmark-5.4a", MOST, EXT)),
        Claim::quoted("among others, against ramfs", "comparable", "5.2"),
    ],
    alike: "as in Figure 5.3.",
    differs: "as in Figure 5.3.",
};

const MIXED: Figure = Figure {
    name: "Figure 5.6: PostMark with large files",
    question: "How many transactions are done in a second as more of the files are large?",
    workload: "postmark-large",
    sections: &["postmark-5.6"],
    claims: &[
        Claim::quoted("against ext2, over all percentages", "1.29 to 4.10 x", "5.3"),
        Claim::factor("10 % large files, against ext2", "1.75 x", "5.3", ("postmark-5.6", "10 %", EXT_DISK)),
    ],
    alike: "sizes of small and large files, and the mix of transactions.",
    differs:
        "a tenth of the files, so that all fit into the memory of ext4 too; there, ext2 slowed down as they no longer \
              fitted. (The paper has no Figure 5.5.)",
};
