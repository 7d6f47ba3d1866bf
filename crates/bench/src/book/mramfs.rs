//! The figures of the thesis on mramfs.

use super::{Claim, Figure, Paper};

const OWN: &str = "own profile";
const FOREIGN: &str = "profile of made-up homes";
const LARGEST: &str = "131072 B";

pub const PAPER: Paper = Paper {
    name: "mramfs",
    title: "MRAMFS: A Compressing File System for Byte-Addressable Non-Volatile RAM (2011)",
    machine: "a 1.8 GHz Pentium 4 (chapter 3), an Athlon XP 1700+ (chapter 4) and a 2.0 GHz Athlon 64 with 1 GB, Linux 2.6.7 (chapter 5)",
    figures: &[TREES, PREFIXES, BUCKETS, GENERAL, CODECS, SPEEDS, FIELDS, IN_USE, DATA, BY_SIZE, POSTMARK, POSTMARK_TIME, BUILD],
};

const TREES: Figure = Figure {
    name: "Table 3.1: the trees",
    question: "How many inodes, owners and permissions does a real tree have?",
    workload: "study",
    sections: &["profile-tree"],
    claims: &[
        Claim::quoted("Red Hat 8 root: inodes; triples of owner, group and mode", "213569; 119", "Table 3.1"),
        Claim::quoted("workstation root, 2010", "614848; 154", "Table 3.1"),
        Claim::quoted("UNIX server", "1618855; 10417", "Table 3.1"),
    ],
    alike: "the counts are those of the thesis.",
    differs:
        "one tree of this machine; `conquest profile DIR` studies any other. Users below 1000 count as the system's.",
};

const PREFIXES: Figure = Figure {
    name: "Table 3.2: the all-or-nothing codec",
    question: "Which value of each field takes a single bit?",
    workload: "study",
    sections: &["profile-granted"],
    claims: &[],
    alike: "types A (one most common value) and B (values of few bits).",
    differs: "the program chooses them from the tree; there a person did.",
};

const BUCKETS: Figure = Figure {
    name: "Table 3.3: the gamma codec",
    question: "Which ranges does the gamma code of a field have?",
    workload: "study",
    sections: &["profile-gamma"],
    claims: &[],
    alike: "a unary prefix names the range, and each range begins where the one before ends.",
    differs: "the thesis shows a sample of four ranges; here it is the code of the length of files, cut by dynamic programming.",
};

const GENERAL: Figure = Figure {
    name: "Figure 3.1: general compressors",
    question: "How small do general compressors make inodes?",
    workload: "study",
    sections: &["profile-general"],
    claims: &[
        Claim::median(
            "all inodes at once (bzip2 there)",
            "9 B",
            "3.4",
            ("profile-general", ("zstd, all at once", "each")),
        )
        .less(),
        Claim::median(
            "a codec that reads one alone (all or nothing there)",
            "23 B",
            "3.4",
            ("profile-general", ("packed, hybrid", "each")),
        )
        .less(),
    ],
    alike: "inodes of ext2, and stripped ones, are the measure.",
    differs: "zstd stands for gzip and bzip2. Inodes here have four times with nanoseconds, which hardly compress.",
};

const CODECS: Figure = Figure {
    name: "Figure 3.2: inodes by codec and profile",
    question: "How many bytes does a packed inode take with its own profile, and with another one?",
    workload: "study",
    sections: &["profile-codecs"],
    claims: &[
        Claim::median("best codec, own profile (14 to 19 B)", "19 B", "3.4", ("profile-codecs", ("hybrid", OWN)))
            .less(),
        Claim::median("worst profile (30 to 37 B), hybrid", "37 B", "3.4", ("profile-codecs", ("hybrid", FOREIGN)))
            .less(),
        Claim::median("worst profile, gamma", "37 B", "3.4", ("profile-codecs", ("gamma", FOREIGN))).less(),
        Claim::median("worst profile, all or nothing", "37 B", "3.4", ("profile-codecs", ("all or nothing", FOREIGN)))
            .less(),
    ],
    alike: "own profile against a foreign one, for each codec.",
    differs: "a fourth codec takes the best code for each field (hybrid). The foreign profile is one of made-up homes.",
};

const SPEEDS: Figure = Figure {
    name: "Figure 3.3: speed of packing",
    question: "How many inodes are packed and read in a second?",
    workload: "study",
    sections: &["profile-rates"],
    claims: &[
        Claim::median("Huffman, packed (0.27 to 0.6)", "0.6 M/s", "3.4", ("profile-rates", ("Huffman", "packed"))),
        Claim::median("gamma, packed (0.48 to 0.6)", "0.6 M/s", "3.4", ("profile-rates", ("gamma", "packed"))),
        Claim::median(
            "all or nothing, packed (0.8 to 0.95)",
            "0.95 M/s",
            "3.4",
            ("profile-rates", ("all or nothing", "packed")),
        ),
        Claim::median("read (2.2 to 2.7), hybrid", "2.7 M/s", "3.4", ("profile-rates", ("hybrid", "read"))),
    ],
    alike: "all inodes are in memory, and so is the room for packed ones.",
    differs: "processors are much faster; here a codec also writes the header of each block.",
};

const FIELDS: Figure = Figure {
    name: "Figure 3.4: fields of an inode",
    question: "How many bits does each field take?",
    workload: "study",
    sections: &["profile-fields"],
    claims: &[Claim::quoted("owner, group and mode", "at most 14 of 48 bits", "3.3")],
    alike: "averages over all inodes, and one table of owner, group and mode.",
    differs: "times have nanoseconds.",
};

const IN_USE: Figure = Figure {
    name: "Section 5.2.3: inodes in the file system",
    question: "How many bytes does an inode take in a pool?",
    workload: "packed",
    sections: &["packed-bytes", "packed-stat"],
    claims: &[
        Claim::median("packed, on average", "16 B", "5.2.3", ("packed-bytes", ("packed", "an inode takes"))).less()
    ],
    alike: "inodes as the file system has them, not a study of them.",
    differs: "there inodes of a benchmark, here those of a real tree.",
};

const DATA: Figure = Figure {
    name: "Table 4.1: compressed files",
    question: "How much do compressors save of small files, and how fast?",
    workload: "study",
    sections: &["profile-data", "compression"],
    claims: &[
        Claim::median("LZO, saved; LZ4 here", "50 %", "Table 4.1", ("compression", ("warm (LZ4)", "saved, %"))),
        Claim::median("LZRW1, speed; LZ4 here", "52.5 MB/s", "Table 4.1", ("compression", ("warm (LZ4)", "compress"))),
        Claim::median("deflate, saved; zstd here", "61 %", "Table 4.1", ("compression", ("cold (zstd)", "saved, %"))),
        Claim::median(
            "deflate, speed; zstd here",
            "6.3 MB/s",
            "Table 4.1",
            ("compression", ("cold (zstd)", "compress")),
        ),
        Claim::median("reading (125 to 150)", "150 MB/s", "4", ("compression", ("cold (zstd)", "read back"))),
    ],
    alike: "files of up to 128 KB, each compressed whole.",
    differs: "today's codecs, and dictionaries; the second picture is of a pool, which compresses in the background.",
};

const BY_SIZE: Figure = Figure {
    name: "Figures 4.1 to 4.3: compression by size of the file",
    question: "From which size on is a file worth compressing?",
    workload: "study",
    sections: &["profile-saved", "profile-speed", "profile-together"],
    claims: &[
        Claim::ratio(
            "all files to 128 KB, fast codec (800 MB of 1.3 GB)",
            "0.62 x",
            "4",
            ("profile-together", ("lz4", LARGEST), ("plain", LARGEST)),
        )
        .less(),
        Claim::ratio(
            "all files to 128 KB, best codec (570 MB of 1.3 GB)",
            "0.44 x",
            "4",
            ("profile-together", ("zstd 3", LARGEST), ("plain", LARGEST)),
        )
        .less(),
    ],
    alike: "savings, speed and the sum, by size.",
    differs: "sizes are classes of powers of two.",
};

const POSTMARK: Figure = Figure {
    name: "Figure 5.3: PostMark's rate",
    question: "How many transactions are done in a second in one directory, and in a hundred, with compressed inodes?",
    workload: "mramfs",
    sections: &["mramfs-5.3", "mramfs-5.3-dirs"],
    claims: &[
        Claim::ratio(
            "tmpfs against ext2, one directory (55 to 60)",
            "55 x",
            "5.2.1",
            ("mramfs-5.3", ("tmpfs", "transactions"), ("ext2", "transactions")),
        )
        .beside(),
        Claim::ratio(
            "with compression against without (2633 and 2448 /s)",
            "1.08 x",
            "appendix C",
            ("mramfs-5.3", ("conquest, compressing", "transactions"), ("conquest", "transactions")),
        ),
    ],
    alike: "sizes of files, calls and mix of transactions; ext2 on a device in RAM is the measure.",
    differs: "two fifths of the files and a fifth of the transactions. ext2 searches a directory from its beginning: the more \
              files, the slower, so the factor depends on their number. Inodes are packed when they are cold, not as they are \
              written, so that this is a backlog that is compressed meanwhile.",
};

const POSTMARK_TIME: Figure = Figure {
    name: "Figure 5.4: PostMark's time",
    question: "How long does PostMark take?",
    workload: "mramfs",
    sections: &["mramfs-5.4", "mramfs-5.4-dirs", "mramfs-5.3-memory"],
    claims: &[Claim::quoted("all; the transactions", "50.4 s; 38.1 s", "appendix C, run 1")],
    alike: "as in Figure 5.3.",
    differs: "as in Figure 5.3; the memory in use is added.",
};

const BUILD: Figure = Figure {
    name: "Figure 5.5: a build",
    question: "Does the file system matter to a build?",
    workload: "mramfs",
    sections: &["mramfs-5.5", "mramfs-5.5-memory"],
    claims: &[Claim::ratio(
        "total time, against tmpfs (within 5 %)",
        "1.05 x",
        "5.2.2",
        ("mramfs-5.5", ("conquest", "total"), ("tmpfs", "total")),
    )
    .less()],
    alike: "make runs the compiler in a tree of C files.",
    differs: "the tree is generated, unless one is named with --source.",
};
