//! The figures of the paper on E×RAID and I·LFS.

use super::{Claim, Figure, Paper};

const STRIPING: &[&str] = &["striping"];
const SUM: &[&str] = &["sum of the disks"];
const MIRRORED: &str = "conquest logged+uring";

pub const PAPER: Paper = Paper {
    name: "E×RAID and I·LFS",
    title: "Bridging the Information Gap in Storage Protocol Stacks (2002)",
    machine: "a 1 GHz Pentium III Xeon with 128 MB of RAM, four fast disks of 21.6 MB/s and four slow ones of 7.5 MB/s (section 6)",
    figures: &[BASELINE, GROWTH, UNEQUAL, MISCONFIGURED, DEGRADED, FAILURE, REDUNDANCY, LAZY],
};

const BASELINE: Figure = Figure {
    name: "Figure 3: baseline",
    question: "How fast are four slow and four fast disks, written and read in order and at random?",
    workload: "disks-baseline",
    sections: &["disks-baseline-slow", "disks-baseline-fast"],
    claims: &[
        Claim::quoted("random reads, four slow disks", "0.9 MB/s", "6.1"),
        Claim::quoted("random reads, four fast disks", "1.8 MB/s", "6.1"),
    ],
    alike: "requests of 8 KB, one after the other; a log turns random writes into writes in order.",
    differs: "disks are loop devices that the kernel holds to a bandwidth. They seek in no time, so random reads are faster than \
              on the paper's disks.",
};

const GROWTH: Figure = Figure {
    name: "Figure 4: growth",
    question: "How soon does a disk that is added while files are written take its part of the writes?",
    workload: "disks-growth",
    sections: &["disks-growth", "disks-growth-each"],
    claims: &[Claim::quoted("a new disk is used", "immediately", "6.2")],
    alike: "one disk, then one more three times, by a command while a file is written in order.",
    differs: "less is written between disks. btrfs, which grows as well, stands beside it.",
};

const UNEQUAL: Figure = Figure {
    name: "Figure 5: unequal disks",
    question: "How much of the bandwidth of fast and slow disks together does one file get?",
    workload: "disks-unequal",
    sections: &["disks-unequal"],
    claims: &[
        Claim::factor("4 fast: of the sum of the disks", "1 x", "6.3", ("disks-unequal", "0 slow (4:0)", SUM)),
        Claim::factor("2 fast, 2 slow: of the sum of the disks", "1 x", "6.3", ("disks-unequal", "2 slow (2:2)", SUM)),
        Claim::factor("4 slow: of the sum of the disks", "1 x", "6.3", ("disks-unequal", "4 slow (0:4)", SUM)),
    ],
    alike: "f fast and s slow disks, written in order; striping has the best of several chunks.",
    differs: "fast disks are three times as fast as slow ones in both; here both are faster.",
};

const MISCONFIGURED: Figure = Figure {
    name: "Section 6.3: a misconfiguration",
    question: "What is the bandwidth if two of four disks are parts of one?",
    workload: "disks-misconfigured",
    sections: &["disks-misconfigured"],
    claims: &[Claim::factor(
        "against striping (65 and 46 MB/s)",
        "1.41 x",
        "6.3",
        ("disks-misconfigured", "write", STRIPING),
    )],
    alike: "three disks, one of which is there as two halves.",
    differs: "the halves are loop devices over one that has a bandwidth.",
};

const DEGRADED: Figure = Figure {
    name: "Figure 6: a disk that slows down",
    question: "How fast are writes while one of four disks delivers a quarter of its speed?",
    workload: "disks-degraded",
    sections: &["disks-degraded", "disks-degraded-time", "disks-degraded-each"],
    claims: &[Claim::factor(
        "the middle third, against striping",
        "2 x",
        "6.3",
        ("disks-degraded", "middle third", STRIPING),
    )],
    alike: "the slow third, and the part of its speed that is left (5.8 of 21.6 MB/s).",
    differs: "there requests were delayed by a fixed time; here bandwidth is limited.",
};

const FAILURE: Figure = Figure {
    name: "Figure 7: a disk fails",
    question: "How fast are random reads of mirrored files before and after a disk is lost?",
    workload: "disks-failure",
    sections: &["disks-failure", "disks-failure-time"],
    claims: &[Claim::quoted("after the loss", "reduced", "6.4")],
    alike: "several readers, mirrored files, and reads of one disk that fail from one moment on.",
    differs: "the pool reads on without a command, and copies what has lost its replica when the disk is removed.",
};

const REDUNDANCY: Figure = Figure {
    name: "Figure 8: redundancy per file",
    question: "What does it cost to mirror some of twenty files?",
    workload: "disks-mirrored",
    sections: &["disks-mirrored"],
    claims: &[Claim::ratio(
        "all mirrored, against none",
        "0.50 x",
        "6.4",
        ("disks-mirrored", (MIRRORED, "100 % mirrored"), (MIRRORED, "0 % mirrored")),
    )],
    alike: "twenty files, written at a time, on four fast disks.",
    differs: "btrfs is beside it, which mirrors all files or none.",
};

const LAZY: Figure = Figure {
    name: "Figure 9: lazy mirrors",
    question: "What does it cost to mirror files later?",
    workload: "disks-lazy",
    sections: &["disks-lazy", "disks-lazy-time"],
    claims: &[Claim::quoted("while the copies are made", "slightly reduced", "6.5")],
    alike: "the first files are copied while further ones are written.",
    differs: "copying begins after 6 seconds, not 20, since the disks are faster.",
};
