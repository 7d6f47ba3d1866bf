//! The figures of the paper on the union of buffer cache and journal.

use super::{Claim, Figure, Paper};

const JOURNAL: &[&str] = &["ext4 data=journal"];
const RATES: &str = "ubj-10";

pub const PAPER: Paper = Paper {
    name: "UBJ",
    title: "Unioning of the Buffer Cache and Journaling Layers with Non-volatile Memory (2013)",
    machine: "a 3.1 GHz Core i3-2100 with 4 GB of RAM, Linux 2.6.38",
    figures: &[WORKLOADS, TRAFFIC, MISSES, SHARE, HITS, CHANGE, FILEBENCH, IOZONE, POSTMARK, PERIOD],
};

const WORKLOADS: Figure = Figure {
    name: "Table 1: the workloads",
    question: "What do the workloads of Filebench read and write?",
    workload: "ubj-replay",
    sections: &["ubj-table-1"],
    claims: &[
        Claim::quoted(
            "varmail: size of a file, files, size of an operation, reads to writes",
            "16 KB, 1000, 4 KB, 1:1",
            "Table 1",
        ),
        Claim::quoted("proxy", "16 KB, 10000, 5 KB, 5:1", "Table 1"),
        Claim::quoted("webserver", "16 KB, 1000, 14 KB, 10:1", "Table 1"),
        Claim::quoted("fileserver", "128 KB, 1000, 72 KB, 1:2", "Table 1"),
    ],
    alike: "the four workloads and their sizes of files.",
    differs: "traces have as many files as make one footprint for all workloads, so that caches of one size compare.",
};

const TRAFFIC: Figure = Figure {
    name: "Figure 2: bytes written to disk",
    question: "How much more does a journal write to the disk than no journal, and how much does the union?",
    workload: "ubj-traffic",
    sections: &["ubj-2"],
    claims: &[
        Claim::ratio(
            "a journal against none (average over workloads there), varmail",
            "2.70 x",
            "2",
            ("ubj-2", ("ext4 data=journal", "varmail"), ("ext4 without a journal", "varmail")),
        )
        .beside(),
        Claim::ratio(
            "the same, fileserver",
            "2.70 x",
            "2",
            ("ubj-2", ("ext4 data=journal", "fileserver"), ("ext4 without a journal", "fileserver")),
        )
        .beside(),
    ],
    alike: "everything that reaches the device counts, until nothing is dirty.",
    differs: "a pool keeps files of up to 64 KiB in memory alone, so that it may write less than no journal at all.",
};

const MISSES: Figure = Figure {
    name: "Figure 6: cache misses",
    question: "How many more references miss the cache if it holds the journal too, by the size of the cache?",
    workload: "ubj-replay",
    sections: &["ubj-6-varmail", "ubj-6-fileserver", "ubj-6-webserver", "ubj-6-webproxy"],
    claims: &[Claim::quoted("UBJ against no journal (BF-no)", "marginal", "4")],
    alike: "one trace through three caches: without a journal, with half of the memory as a journal (BF-Jm), and the union.",
    differs: "the caches are pools, whose blocks are evicted by their own policy. References are of whole files, so few are missed \
              before the cache is small.",
};

const SHARE: Figure = Figure {
    name: "Figure 7: the journal's part of the cache",
    question: "How much of the union do frozen blocks take, at 0.7 of the footprint?",
    workload: "ubj-replay",
    sections: &["ubj-7"],
    claims: &[],
    alike: "blocks are frozen until they are victims of replacement.",
    differs: "only dirty committed blocks count as journal.",
};

const HITS: Figure = Figure {
    name: "Figure 8: hits in frozen blocks",
    question: "How many of the hits do frozen blocks serve?",
    workload: "ubj-replay",
    sections: &["ubj-8"],
    claims: &[Claim::quoted("of all hits", "16 to 48 %", "4")],
    alike: "hits are reads that no disk serves.",
    differs: "the size of the cache is that of Figure 7.",
};

const CHANGE: Figure = Figure {
    name: "Figure 9: the journal's part over time",
    question: "How does the journal's part change while fileserver runs?",
    workload: "ubj-replay",
    sections: &["ubj-9"],
    claims: &[],
    alike: "the workload; its part of the cache is shown over the trace.",
    differs: "the cache with a journal beside it is shown too.",
};

const FILEBENCH: Figure = Figure {
    name: "Figure 10: Filebench",
    question: "How fast are the servers of Filebench, against ext4 that journals content?",
    workload: "ubj-filebench",
    sections: &[RATES, "ubj-10-time"],
    claims: &[
        Claim::factor("varmail, throughput", "3.40 x", "5.B", (RATES, "varmail", JOURNAL)),
        Claim::factor("webserver, throughput", "1.23 x", "5.B", (RATES, "webserver", JOURNAL)),
        Claim::factor("proxy, throughput", "1.11 x", "5.B", (RATES, "webproxy", JOURNAL)),
        Claim::quoted("fileserver", "less than varmail", "5.B"),
        Claim::quoted("average of throughput", "1.60 x better", "5.B"),
    ],
    alike: "the loops and parameters of Filebench, and the journal mode of ext4.",
    differs: "a pool on `battery` commits each write, where UBJ commits every five seconds. Through the mount each call is a \
              message, which weighs most where files are only read from a cache.",
};

const IOZONE: Figure = Figure {
    name: "Figure 11: IOzone",
    question: "How fast is one file written in order and at random, by its size?",
    workload: "ubj-iozone",
    sections: &["ubj-11-random", "ubj-11-sequential"],
    claims: &[
        Claim::factor("random (average there), 100 MB", "2.10 x", "5.B", ("ubj-11-random", "100 MiB", JOURNAL)),
        Claim::factor("random, 300 MB", "2.10 x", "5.B", ("ubj-11-random", "300 MiB", JOURNAL)),
        Claim::factor("sequential, 100 MB", "2.10 x", "5.B", ("ubj-11-sequential", "100 MiB", JOURNAL)),
        Claim::factor("sequential, 300 MB", "2.10 x", "5.B", ("ubj-11-sequential", "300 MiB", JOURNAL)),
    ],
    alike: "sizes of the file, and a sync at the end.",
    differs: "fio does what IOzone did.",
};

const POSTMARK: Figure = Figure {
    name: "Figure 12: PostMark",
    question: "How many bytes does PostMark read and write in a second, by the number of transactions?",
    workload: "ubj-postmark",
    sections: &["ubj-12-read", "ubj-12-write"],
    claims: &[
        Claim::factor("written (average there), 2000 transactions", "2.09 x", "5.B", ("ubj-12-write", "2000", JOURNAL)),
        Claim::factor("written, 10000 transactions", "2.09 x", "5.B", ("ubj-12-write", "10000", JOURNAL)),
        Claim::factor("read, 2000 transactions", "2.09 x", "5.B", ("ubj-12-read", "2000", JOURNAL)),
        Claim::factor("read, 10000 transactions", "2.09 x", "5.B", ("ubj-12-read", "10000", JOURNAL)),
    ],
    alike: "1,000 files of 500 KB on average, and the numbers of transactions.",
    differs: "the threshold of the pool is 64 KiB, so that content is in the union.",
};

const PERIOD: Figure = Figure {
    name: "Figure 13: the period of commits",
    question: "How long does an operation of varmail take, by the period of commits?",
    workload: "ubj-period",
    sections: &["ubj-13"],
    claims: &[Claim::quoted("UBJ, from 1 to 5 seconds", "not sensitive", "5.B")],
    alike: "the workload and the periods.",
    differs: "varmail syncs each message, and a sync waits for a commit whatever the period; on `battery` a pool commits each write.",
};
